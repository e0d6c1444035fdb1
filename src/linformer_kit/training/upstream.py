"""transformers' Trainer as one can trust it: exact resume, whole checkpoints, no pickle, no update with a NaN.

This is the file that replaces private methods of the Trainer or leans on them; our other trainers choose samplers and
measure. `PRIVATE` lists what all of them touch; the contract test says what of it a new version has changed.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length

from linformer_kit.errors import (
    DivergedError,
    InputError,
    Stopped,
    error_text,
    failure_kind,
    input_errors,
    machine_failure,
)
from linformer_kit.files.manifest import checked_folder, damage, listed
from linformer_kit.files.runs import TRAINER_STATE, checkpoint_path, rotate_checkpoints
from linformer_kit.training.state import (
    check_like,
    fitted_optimizer_state,
    fitted_state,
    load_state,
    random_state,
    save_state,
    set_random_state,
)
from linformer_kit.training.stopping import StopRequest, stop_requests
from linformer_kit.training.trainer_state import trainer_state

logger = logging.getLogger(__name__)

OPTIMIZER, SCHEDULER, SCALER, PROCESSES = (
    f"{name}.safetensors" for name in ("optimizer", "scheduler", "scaler", "processes")
)
# What of transformers 5.23 is replaced here, and what calls it in an order that this file counts on.
PRIVATE = (
    "_clip_grad_norm",
    "_determine_best_metric",
    "_evaluate",
    "_finalize_training",
    "_get_eval_sampler",
    "_get_grad_norm",
    "_get_train_sampler",
    "_init_training_state",
    "_inner_training_loop",
    "_load_best_model",
    "_load_callback_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_scaler",
    "_maybe_log_save_evaluate",
    "_prepare_for_training",
    "_prepare_inputs",
    "_run_epoch",
    "_save",
    "_save_checkpoint",
    "evaluation_loop",
    "get_batch_samples",
    "save_model",
    "set_initial_training_values",
    "train",
    "training_step",
)


# What a checkpoint knows of each process, beside its random generators.
_PROCESS = {
    "loss": torch.zeros(()),
    "total_loss": 0.0,
    "last_logged": 0,
    "evaluation_due": False,
    "position": (0, 0),
}


class _EvaluationStopped(Exception):
    """Somebody has asked to stop in the middle of an evaluation."""


class ExactTrainer(Trainer):
    """Trainer that can be interrupted anywhere and goes on as if it had not been.

    Checkpoints are whole or not there and hold no pickle; `find_checkpoint` verifies them. Evaluation leaves the random
    generators as they were. A loss or gradient that is no number never reaches the parameters.

    Args:
        skip_bad_batches: Updates that may be left out because their loss or gradient is no number.
        arguments: As for Trainer.
    """

    def __init__(self, *arguments: Any, skip_bad_batches: int = 0, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.skip_bad_batches = skip_bad_batches
        self._request = StopRequest()
        self._agreed_signal = 0
        self._evaluation_due = False
        self._epoch_ended = False
        self._ended_early = False
        # Where in the data the training stands, and what its first epoch leaves out as done.
        self._epoch, self._batches, self._skipped_batches = -1, 0, 0
        self._resumed_from: Path | None = None
        self._losses: list[Tensor] = []
        self._loss_before = torch.zeros(())
        self.add_callback(_Hooks(self))

    def add_callback(self, callback: Any) -> None:
        """As the library's; our own hooks stay last, after whatever counts time or updates."""
        super().add_callback(callback)
        self.callback_handler.callbacks.sort(key=lambda each: isinstance(each, _Hooks))

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:  # type: ignore[override]
        """Train, or go on from a checkpoint that is known to be whole.

        Raises:
            DivergedError: before an update with what is no number, if no more of them may be skipped.
            Stopped: after a signal, once the update under way is done and a checkpoint holds it.
        """
        self._resumed_from = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        if self._resumed_from is not None:
            self.args.eval_on_start = False  # that was before
            trainer_state(self._resumed_from)  # refused before the library takes it as it is
        with stop_requests() as self._request:
            try:
                output = super().train(resume_from_checkpoint=resume_from_checkpoint, **named)
            except _EvaluationStopped:  # before the first update from here on; one that is due stays so
                raise self._stopped() from None
            (self._agreed_signal,) = self._agree(self._request.signal)
        if self._agreed_signal:  # the best one may be loading, but what comes after has not begun
            raise self._stopped()
        return output

    @property
    def skipped_updates(self) -> int:
        """How many updates were left out because of what is no number."""
        return sum("skipped_updates" in entry for entry in self.state.log_history)

    # Going on ---------------------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        _load_weights(self.model if model is None else model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        checkpoint = Path(self.state.best_model_checkpoint)
        if found := damage(checkpoint, only="*.safetensors"):
            raise InputError(f"load_best_model_at_end: {found}")
        _load_weights(self.model, checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            for target, name in ((self.optimizer, OPTIMIZER), (self.lr_scheduler, SCHEDULER)):
                path = Path(checkpoint) / name
                state = load_state(path)
                with input_errors(str(path)):
                    fitted = fitted_optimizer_state if name == OPTIMIZER else fitted_state
                    target.load_state_dict(fitted(state, target))

    def _load_callback_state(self) -> None:
        """The library's, which takes any attribute of any callback for its state."""
        path = (self._resumed_from or Path()) / TRAINER_STATE
        with input_errors(str(path)):
            for callback in [*self.callback_handler.callbacks, self.control]:
                name = type(callback).__name__
                if isinstance(callback, ExportableState) and name in self.state.stateful_callbacks:
                    check_like(self.state.stateful_callbacks[name], callback.state(), name)
            super()._load_callback_state()

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and (path := Path(checkpoint) / SCALER).exists():
            state = load_state(path)
            with input_errors(str(path)):
                self.accelerator.scaler.load_state_dict(state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            states = self._process_states(Path(checkpoint))
            if len(states) == self.args.world_size:
                with input_errors(str(Path(checkpoint) / PROCESSES)):
                    set_random_state(states[self.args.process_index]["random"])

    def _process_states(self, checkpoint: Path) -> list[dict[str, Any]]:
        """What the checkpoint knows of each process that wrote it."""
        path = checkpoint / PROCESSES
        states = load_state(path)
        with input_errors(str(path)):
            check_like(states, [_PROCESS] * max(1, len(states)), "processes")
        return states

    def _init_training_state(self, *arguments: Any) -> tuple[int, int]:
        """The library's, which takes a stream for one that never ends."""
        self._ended_early = False
        if self._resumed_from is not None:
            state, max_steps = trainer_state(self._resumed_from), arguments[0]
            if state.global_step > max_steps:
                path = self._resumed_from / TRAINER_STATE
                raise InputError(f"{path}: expected at most {max_steps} as global_step, got {state.global_step}")
            control = state.stateful_callbacks.get("TrainerControl", {}).get("args", {})
            self._ended_early = control.get("should_training_stop") is True and state.global_step < state.max_steps
        epoch, batches = super()._init_training_state(*arguments)
        if self._resumed_from is not None and not has_length(self.train_dataset):
            epoch, batches = self._process_states(self._resumed_from)[0]["position"]
        self._epoch, self._skipped_batches = epoch - 1, batches
        return epoch, batches

    def _take_up(self) -> None:
        """What the library forgets: losses since the last line of the log, and an evaluation that is due."""
        self._evaluation_due = self._epoch_ended = False
        if self._resumed_from is None:
            return
        folder, best = Path(self.args.output_dir), self.state.best_global_step
        best_checkpoint = checkpoint_path(folder, best) if best else None
        there = best_checkpoint is not None and best_checkpoint.is_dir()
        self.state.best_model_checkpoint = str(best_checkpoint) if there else None
        self.control.should_training_stop = self._ended_early
        states = self._process_states(self._resumed_from)
        same = len(states) == self.args.world_size
        state = states[self.args.process_index if same else 0]
        if not same:
            state["loss"] = torch.stack([other["loss"] for other in states]).mean()
            logger.warning(
                "resume: the checkpoint is of %s processes, not %s: dropout will not be what it would have been",
                len(states),
                self.args.world_size,
            )
        self._tr_loss.copy_(state["loss"])
        self._total_loss_scalar, self._globalstep_last_logged = state["total_loss"], state["last_logged"]
        if state["evaluation_due"]:
            self._load_rng_state(str(self._resumed_from))
            here, (self._epoch, self._batches) = (self._epoch, self._batches), state["position"]
            self._determine_best_metric(metrics=self._evaluate(None, None), trial=None)
            self._save_checkpoint(self.model, None)
            self._epoch, self._batches = here

    def _run_epoch(self, **named: Any) -> None:
        """The library's, which makes one more update where there is none left to make."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**named)

    # Saving -----------------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Weights, configuration and tokenizer, and not the arguments, which the library would pickle."""
        if self.args.should_save:
            folder = self.args.output_dir if output_dir is None else output_dir
            self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """All of it at once, by one process, which tells the others whether it went well."""
        self.store_flos()
        states = gather_object([self._own_state()])
        error: BaseException | None = None
        told: list[Any] = [None]
        if self.args.should_save:
            try:
                self._write_checkpoint(states)
            except Exception as raised:
                error = raised
                told = [(failure_kind(error), machine_failure(error) or error_text(error))]
        broadcast_object_list(told)
        if told[0] is not None:
            kind, got = told[0]
            folder = checkpoint_path(Path(self.args.output_dir), self.state.global_step)
            raise kind(
                f"{folder}: expected to be able to write it, got: {got}; nothing is left of it, "
                "and older checkpoints are as they were"
            ) from error
        if self.args.should_save:
            best = self.state.best_global_step
            rotate_checkpoints(Path(self.args.output_dir), self.args.save_total_limit, keep=best)

    def _own_state(self) -> dict[str, Any]:
        return {
            "random": random_state(),
            "loss": self._tr_loss.cpu(),  # the process that writes may not see the device of this one
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "evaluation_due": self._evaluation_due,
            "position": (self._epoch, self._batches),
        }

    def _write_checkpoint(self, states: list[dict[str, Any]]) -> None:
        folder, best = Path(self.args.output_dir), self.state.best_global_step
        place = checkpoint_path(folder, self.state.global_step)
        if best and (best == self.state.global_step or checkpoint_path(folder, best).is_dir()):
            self.state.best_model_checkpoint = str(checkpoint_path(folder, best))
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks[type(callback).__name__] = callback.state()
        with checked_folder(place) as part:
            self.save_model(str(part), _internal_call=True)
            save_state(self.optimizer.state_dict(), part / OPTIMIZER)
            save_state(self.lr_scheduler.state_dict(), part / SCHEDULER)
            if getattr(self.accelerator, "scaler", None) is not None:
                save_state(self.accelerator.scaler.state_dict(), part / SCALER)
            save_state(states, part / PROCESSES)
            self.state.save_to_json(str(part / TRAINER_STATE))

    # What is no number ------------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """The library's, whose losses are looked at before the update."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        self._batches += 1
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The library's; it is asked for just before the update, which must not be made with what is no number."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        losses, self._losses = torch.stack(self._losses).float(), []
        wrong = ""
        if not torch.isfinite(losses).all():
            first = int((~torch.isfinite(losses)).nonzero()[0])
            wrong = f"a loss of {losses[first].item()} in batch {first + 1} of {len(losses)}"
        elif not torch.isfinite(torch.as_tensor(norm)) and getattr(self.accelerator, "scaler", None) is None:
            wrong = f"a gradient of length {float(norm)}"
        number, self._agreed_signal = self._agree(bool(wrong), self._request.signal)
        if number:
            found = [(reason, rank) for rank, reason in enumerate(gather_object([wrong])) if reason]
            self._refuse_update(model, *found[0])
        return norm

    def _refuse_update(self, model: nn.Module, wrong: str, rank: int) -> None:
        """Leave the update out, which the optimizer does without gradients, or end here."""
        update = self.state.global_step + 1
        if self.skipped_updates >= self.skip_bad_batches:
            epoch = 0 if self.state.epoch is None else self.state.epoch
            place = f"update {update} (epoch {epoch:.4g}, process {rank})"
            raise DivergedError(
                f"{place}: expected a loss and a gradient that are numbers, got {wrong}; the update was not made. "
                f"Lower learning_rate {self.args.learning_rate} or raise skip_bad_batches {self.skip_bad_batches}"
            )
        logger.warning("update %s is left out: it would be made with %s", update, wrong)
        if getattr(self.accelerator, "scaler", None) is None:  # which leaves the update out by itself
            for parameter in model.parameters():
                parameter.grad = None
        # So the mean in the log is over the updates that were made.
        self._tr_loss.copy_(self._loss_before)
        self._globalstep_last_logged += 1
        self.log({"skipped_updates": self.skipped_updates + 1})

    def _agree(self, *numbers: int) -> list[int]:
        """The largest that any process says, one for each number."""
        if self.args.world_size == 1:
            return list(numbers)
        said = torch.tensor(numbers, device=self.args.device)
        torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX)
        return said.tolist()

    # Stopping ---------------------------------------------------------------------------------------------------------

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """The library's, which leaves the random generators as they were."""
        before = random_state()
        try:
            return super().evaluate(*arguments, **named)
        finally:
            set_random_state(before)

    def _maybe_log_save_evaluate(
        self, tr_loss: Tensor, grad_norm: Any, model: nn.Module, trial: Any, *others: Any, **named: Any
    ) -> None:
        """The library's, after which a training ends that somebody has asked to stop.

        At the end of an epoch it comes a second time, with what falls due then, so it is left to that.
        """
        stop = self._agreed_signal if self.args.world_size > 1 else self._request.signal
        if stop and not self._epoch_ended and float(self.state.epoch).is_integer():
            return
        if stop:
            self._evaluation_due, self.control.should_evaluate = self.control.should_evaluate, False
            self.control.should_save = False
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *others, **named)
        except _EvaluationStopped:
            self._evaluation_due, stop = True, self._agreed_signal
        if stop:
            self._save_checkpoint(model, trial)
            raise self._stopped()

    def _stopped(self) -> Stopped:
        """What to raise when somebody has asked to stop and all that there is to save is saved."""
        update = self.state.global_step
        checkpoint = checkpoint_path(Path(self.args.output_dir), update)
        what = f"--resume goes on from {checkpoint}" if checkpoint.is_dir() else "there was nothing to save"
        return Stopped(f"stopped after update {update}; {what}", signal=self._agreed_signal or self._request.signal)


class _Hooks(TrainerCallback):
    """Moments of a training that its trainer has to know of."""

    def __init__(self, trainer: ExactTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *arguments: Any, **named: Any) -> None:
        self.trainer._take_up()

    def on_epoch_begin(self, *arguments: Any, **named: Any) -> None:
        trainer = self.trainer
        trainer._epoch_ended = False
        trainer._epoch, trainer._batches = trainer._epoch + 1, trainer._skipped_batches
        trainer._skipped_batches = 0
        _set_epoch(trainer.callback_handler.train_dataloader, trainer._epoch)

    def on_epoch_end(self, *arguments: Any, **named: Any) -> None:
        self.trainer._epoch_ended = True

    def on_step_begin(self, *arguments: Any, **named: Any) -> None:
        self.trainer._loss_before = self.trainer._tr_loss.clone()

    def on_prediction_step(self, *arguments: Any, **named: Any) -> None:
        trainer = self.trainer
        if trainer.is_in_train:
            (trainer._agreed_signal,) = trainer._agree(trainer._request.signal)
            if trainer._agreed_signal:
                raise _EvaluationStopped


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell the sampler at the bottom, which accelerate forgets when it leaves out batches in several processes."""
    while loader is not None:
        inner = getattr(loader, "batch_sampler", None)
        loader = getattr(loader, "sampler", None) if inner is None else inner
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)


def _load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Put the weights of a checkpoint into its model; of files only those that were verified."""
    weights: dict[str, Tensor] = {}
    for name in sorted(name for name in listed(checkpoint) if fnmatch(name, "model*.safetensors")):
        with input_errors(str(checkpoint / name)):
            weights |= load_file(checkpoint / name)
    with input_errors(str(checkpoint)):
        result = model.load_state_dict(weights, strict=False)
    known = dict(model.named_parameters(remove_duplicate=True)) | dict(model.named_buffers())
    missing = sorted(set(result.missing_keys) & set(known))
    if missing or result.unexpected_keys:
        kind, keys = ("none for", missing) if missing else ("no place for", result.unexpected_keys)
        raise InputError(f"{checkpoint}: expected the weights of this model, got {kind} {keys[0]}")
