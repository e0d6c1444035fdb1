"""A run of a training command: its folder, locked while it lives, and the loop: evaluate, save, update.

Each step is a function of the update number, the position in the data, the rank and the log. All but the rank are
saved in each checkpoint; data order, masks, learning rate and dropout seeds depend on nothing else. So a resumed
training equals an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from linformer_cli.errors import DivergedError, InputError, Stopped, check_input
from linformer_cli.output_paths import LOCK
from linformer_cli.settings import TrainingSettings, without_local_paths
from linformer_kit.files.folders import check_output_dir, checkpoint_path, locked, open_output_dir, rotate_checkpoints
from linformer_kit.files.manifest import damage
from linformer_kit.files.stopping import stop_requests
from linformer_kit.report.environment import environment, fast_dtype
from linformer_kit.training.checkpoint import (
    load_moments,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
    write_by_one,
)
from linformer_kit.training.optimizer import HIGHEST_RATE, adamw, distributed
from linformer_kit.training.process import seed_generators, start_processes
from linformer_kit.training.record import Record
from linformer_kit.training.state import Plan, TrainingLog, TrainingState, read_state, tracker_classes
from linformer_kit.training.task import Batch, Batches, Task, UpdateBatches, batches_in_order, to_array, to_device

logger = logging.getLogger(__name__)

_SCALER_KEYS = ("scale", "_growth_tracker")  # of the state of float16's loss scaling


class Run:
    """A run of a training command. All processes create one, and call the same methods within `with`.

    It locks its folder when it is created, or in `open` if the folder does not exist yet, until the block ends.

    Args:
        command: Name of the command.
        settings: Its settings.
        may_change: Names of settings that may change on resume, besides those that may change in all commands.

    Attributes:
        folder: The output folder; final after `open`.
        task, plan, state, log, optimizer: Those of the training, after `begin`.
        autocast: Context of forward passes, for mixed precision; each use ends before the next one begins.
        diverged: Where and why the training diverged; None: it did not.

    Raises:
        InputError: for settings that do not fit, for a folder that is not empty, and for one of a run that is not to be
            resumed, or is alive.
    """

    def __init__(self, command: str, settings: TrainingSettings, *, may_change: Collection[str] = ()) -> None:
        tracker_classes(settings.report_to)
        self.command, self.settings = command, settings
        self.process = start_processes(settings.device, timeout=settings.ddp_timeout)
        count = self.process.num_processes
        if count > 1 and settings.output_dir is None:
            raise InputError(f"output_dir: expected a folder for {count} processes to share, got none")
        if settings.fully_shard and count == 1:
            raise InputError("fully_shard: expected several processes, as torchrun starts them, got one")
        if self.process.is_main_process:
            check_output_dir(settings.output_dir, resume=settings.resume)
        self.folder = Path(settings.output_dir or "")
        self._record = Record(command, settings, self.process)
        self._lock = contextlib.ExitStack()
        self._is_new = settings.output_dir is None or not self.folder.is_dir()
        if self._is_new or not self.process.is_main_process:
            return
        with contextlib.ExitStack() as lock:  # released after an error
            lock.enter_context(locked(self.folder / LOCK, "output_dir"))
            check_output_dir(settings.output_dir, resume=settings.resume)  # nothing was written meanwhile
            self._record.read(self.folder, may_change)
            self._lock = lock.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def open(self, source: dict[str, str], fingerprints: dict[str, str]) -> None:
        """Open the output folder and record settings, a description of the data, and hashes of the inputs.

        The names of the hashes are words, such as `train_text_fingerprint`, which the error of a resume repeats.

        Raises:
            InputError: if a resumed run had other inputs, or another run has started in the folder meanwhile.
        """
        if self.process.is_main_process:
            self._record.check_same_content(self.folder, fingerprints)
            self.folder = open_output_dir(self.settings.output_dir, command=self.command)
            if self._is_new:
                self._lock.enter_context(locked(self.folder / LOCK, "output_dir"))
                check_output_dir(str(self.folder), resume=False)  # no other run has ended there meanwhile
            self._record.write(self.folder, {**source, **fingerprints})
        self.process.wait_for_everyone()

    def begin(self, task: Task, plan: Plan, *, checkpoint: Path | None = None) -> None:
        """Load a training, or begin one, on the available devices: mixed precision, data parallel or sharded.

        Args:
            task: Model, batches, loss and metrics; it is moved to the device of this process.
            plan: Number of updates, learning rates, and when to evaluate and save.
            checkpoint: Checkpoint to resume from; None: start from the beginning.

        Raises:
            InputError: for a checkpoint of another training.
        """
        self.task, self.plan, settings = task, plan, self.settings
        self.diverged: str | None = None
        process = PartialState()
        self.device, self.rank, self.processes = process.device, process.process_index, process.num_processes
        self.dtype = fast_dtype(settings.dtype, self.device)
        self.autocast = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        # Disabled, it changes nothing: `scale` returns the loss, `step` makes the step of the optimizer.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.state = TrainingState() if checkpoint is None else read_state(checkpoint)
        if checkpoint is not None:
            load_weights(task.model, checkpoint)
        self._parallel = distributed(task.to(self.device), settings, process)
        self.optimizer = adamw(task.model, settings)
        if checkpoint is not None:
            load_moments(task.model, self.optimizer, checkpoint)
        if self.state.scaler:
            self._scaler.load_state_dict(self._scaler.state_dict() | self.state.scaler)
        self._saved = None if checkpoint is None else (self.state.update, len(self.state.log))
        if checkpoint is not None:
            count, expected = len(self.state.constants), f"{task.constant_count} constants in {checkpoint}"
            check_input(count == task.constant_count, "resume", expected, count)
        self._batches = Batches(task, settings)
        self.state.epoch = self._batches.epochs(self.state.position)
        self._signals: list[int] = []

    def train(self, task: Task, plan: Plan, *, label: str = "") -> None:
        """Train a task, or resume it; `label` describes it in the log.

        If the training diverges, `diverged` says where, and earlier checkpoints are finite.
        """
        self.begin(task, plan, checkpoint=newest_checkpoint(self.folder) if self.settings.resume else None)
        size, dtype = f"{task.model.num_parameters():,} parameters", str(self.dtype).removeprefix("torch.")
        mixed = "" if self.dtype == torch.float32 else " mixed precision"
        logger.info("%s, %s, %s%s, on %s", label, size, dtype, mixed, self.process.device)
        try:
            self.loop()
            losses, rate = self.state.logged("eval_loss"), self.settings.learning_rate
            if not math.isfinite(losses[max(losses)]):
                got = "the validation loss is NaN or infinite"
                raise DivergedError(f"training diverged: {got}; lower learning_rate {rate}")
        except DivergedError as error:
            self.diverged = str(error)

    def loop(self) -> None:
        """Train to the end.

        Raises:
            DivergedError: before a non-finite update.
            Stopped: after a signal, once the current update is done and saved in a checkpoint.
        """
        state, plan = self.state, self.plan
        updates = self._batches.updates(state.position)
        self.log = TrainingLog(
            state, updates=plan.updates, unit=self.task.unit, folder=self.folder, report_to=self.settings.report_to
        )
        try:
            with stop_requests() as self._signals:
                self._find_constants()
                if state.update == 0:
                    self.task.start(self)
                self._warn_of_another_schedule()
                while True:
                    self._stop_if_asked()
                    if plan.evaluation_is_due(state):
                        self._evaluate()
                    if plan.checkpoint_is_due(state):
                        self._save()
                    if plan.is_finished(state):
                        break
                    self.log.start_clock()
                    self._update(next(updates))
                self._load_best()
                self._warn_of_better_start()
                self._stop_if_asked()
        finally:
            updates.close()
            self.log.close()

    def _find_constants(self) -> None:
        """Give the task its constants, of the checkpoint or else as the first process measures them."""
        if self.state.update == 0 and self.rank == 0:
            self.task.begin(None)
            with torch.no_grad(), self.autocast:
                self.state.constants = self.task.eval().measure_constants(self.device)
        found = [self.state.constants]
        broadcast_object_list(found)
        self.state.constants = self.task.constants = found[0]

    def _warn_of_another_schedule(self) -> None:
        """Say so if a resumed training goes on with a schedule that would have had another learning rate before."""
        state, schedule = self.state, self.plan.schedule
        if state.update == 0 or self.plan.is_finished(state) or math.isclose(schedule(state.update - 1), state.rate):
            return
        after = schedule(state.update)
        logger.warning(
            "resume: another number of updates is another schedule: from one update to the next, the learning rate "
            "moves from %.3g (%.0f %% of its peak) to %.3g (%.0f %%)",
            *(state.rate * self.settings.learning_rate, 100 * state.rate),
            *(after * self.settings.learning_rate, 100 * after),
        )

    def _update(self, data: UpdateBatches) -> None:
        """Make one update; a `DivergedError` if its loss or gradient is not finite."""
        task, state, settings = self.task, self.state, self.settings
        if state.update == self.plan.restart:
            self.optimizer.state.clear()
        task.train()
        task.begin(state.update)
        total, losses = self._total_labels(data.batches), []
        for number, batch in enumerate(data.batches):
            seed_generators(self.plan.seed, state.update, number, self.rank)
            with self._synchronised(number == len(data.batches) - 1):
                with self.autocast:
                    loss = self._parallel(to_device(batch, self.device), total)
                # Gradients are averaged over the processes; a loss divided by all labels needs their sum.
                loss = loss / len(data.batches) if total is None else loss * self.processes
                self._scaler.scale(loss).backward()
            losses.append(loss.detach() / self.processes)
        self._scaler.unscale_(self.optimizer)
        length = nn.utils.clip_grad_norm_(task.model.parameters(), settings.max_grad_norm or torch.inf)
        norm = (length.full_tensor() if isinstance(length, DTensor) else length).item()
        state.losses.append(self._finite_loss(losses, norm))
        state.rate = self.plan.schedule(state.update)
        for group in self.optimizer.param_groups:
            group["lr"] = group[HIGHEST_RATE] * state.rate
        self._scaler.step(self.optimizer)  # if float16 has overflowed, it makes no step and lowers the scale
        self._scaler.update()
        self.optimizer.zero_grad()
        task.begin(None)
        state.update += 1
        state.position, state.epoch = data.position, self._batches.epochs(data.position)
        self.log.updated(data.sequences * task.size)
        if state.update % settings.logging_steps == 0:
            self.log.add_losses(learning_rate=state.rate * settings.learning_rate, grad_norm=norm)

    def _total_labels(self, batches: list[Batch]) -> Tensor | None:
        """Numbers of labels of an update over all processes; None if losses are means."""
        counts = [self.task.labels(batch) for batch in batches]
        if any(count is None for count in counts):
            return None
        return self._reduced(torch.stack([torch.as_tensor(count) for count in counts]).sum(dim=0).to(self.device))

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager:
        """Context of a forward and backward pass; processes synchronise gradients in the last pass of an update."""
        if self.settings.fully_shard:
            self.task.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        waits = isinstance(self._parallel, DistributedDataParallel) and not last
        return self._parallel.no_sync() if waits else contextlib.nullcontext()  # type: ignore[operator]

    def _finite_loss(self, parts: list[Tensor], norm: float) -> float:
        """The loss of an update over all processes; a `DivergedError` with the first non-finite loss or gradient.

        Float16 may overflow, which is not an error, so its gradients are not checked.
        """
        losses, wrong = torch.stack(parts).double(), ""
        if not torch.isfinite(losses).all():
            first = int((~torch.isfinite(losses)).nonzero()[0])
            wrong = f"a loss of {losses[first].item()} in batch {first + 1} of {len(losses)} of process {self.rank}"
        elif not self._scaler.is_enabled() and not math.isfinite(norm):
            wrong = f"a gradient norm of {norm}"
        loss, count = self._reduced(torch.stack([losses.sum(), losses.new_tensor(bool(wrong))])).tolist()
        if count:
            first_wrong = next(filter(None, gather_object([wrong])))
            raise DivergedError(
                f"update {self.state.update + 1} (epoch {self.state.epoch:.4g}): expected a finite loss and gradient, "
                f"got {first_wrong}; the update was not made. Lower learning_rate {self.settings.learning_rate}"
            )
        return loss

    def _reduced(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM) -> Tensor:
        """The sum, or another reduction, over all processes, in-place."""
        if self.processes > 1:
            torch.distributed.all_reduce(tensor, op=op)
        return tensor

    def measure(self, items: Any = None) -> tuple[np.ndarray, ...]:
        """Measure each validation sequence, or each of other `items`, in their order, split over all processes.

        Returns:
            One array of `[sequences, ...]` for each tensor of `Task.measure`.

        Raises:
            Stopped: after a signal; the training is saved in a checkpoint.
        """
        self.task.eval()
        self.task.begin(None)
        batches: list[tuple[np.ndarray, ...]] = []
        for batch, rows in batches_in_order(
            self.task, self.settings, self.task.validation_items if items is None else items
        ):
            self._stop_if_asked()
            with torch.no_grad(), self.autocast:
                measured = self.task.measure(to_device(batch, self.device))
            batches.append(tuple(to_array(tensor[:rows]) for tensor in measured))
        # Process r has measured batches r, r + processes, …
        in_order = [batch for group in zip(*gather_object([batches]), strict=True) for batch in group]
        return tuple(np.concatenate(parts) for parts in zip(*in_order, strict=True))

    def _evaluate(self) -> None:
        metrics = self.task.metrics(*self.measure())
        shown = ", ".join(f"{name} {value:,.4f}" for name, value in metrics.items())
        self.log.add({f"eval_{name}": value for name, value in metrics.items()}, f"validation {shown}")

    def _save(self) -> None:
        """Save a checkpoint, unless the newest one has this state, and remove old ones."""
        state, plan = self.state, self.plan
        here = (state.update, len(state.log))
        if state.update == 0 or self._saved == here:
            return
        state.scaler = {name: value for name, value in self._scaler.state_dict().items() if name in _SCALER_KEYS}
        place = checkpoint_path(self.folder, state.update)
        save_checkpoint(place, self.task.model, self.task.tokenizer, self.optimizer, state)
        self._saved = here
        if self.rank == 0:
            keep = None if plan.metric is None else plan.result_update(state)
            try:
                rotate_checkpoints(self.folder, self.settings.save_total_limit, keep=keep)
            except OSError as error:  # the training itself can go on
                logger.warning("%s: old checkpoints cannot be removed: %s", self.folder, error)

    def _load_best(self) -> None:
        """Load the weights of the best checkpoint, if a metric selects the result and it is not the last update."""
        if (best := self.plan.result_update(self.state)) == self.state.update:
            return
        checkpoint = checkpoint_path(self.folder, best)
        if wrong := damage(checkpoint, only="*.safetensors"):
            raise InputError(f"{self.folder}: expected its best checkpoint, got {wrong}")
        load_weights(self.task.model, checkpoint)

    def _warn_of_better_start(self) -> None:
        """Say so if the model was better before the first update, of which there is no checkpoint."""
        state, metric = self.state, self.plan.metric
        if metric is None or state.best(metric, first=0) != 0:
            return
        logged, best = state.logged(f"eval_{metric}"), state.best(metric)
        if best is not None and logged[0] != logged[best]:
            logger.warning(
                "training has made the model worse: validation %s was %.4f before the first update and is %.4f at best "
                "since; lower learning_rate %g",
                *(metric, logged[0], logged[best], self.settings.learning_rate),
            )

    def _stop_if_asked(self) -> None:
        """After a signal to stop in any process, save a checkpoint and raise `Stopped` in all of them."""
        signal = max(self._signals, default=0)
        if self.processes > 1:
            signal = int(self._reduced(torch.tensor(signal, device=self.device), torch.distributed.ReduceOp.MAX))
        if not signal:
            return
        self._save()
        checkpoint = checkpoint_path(self.folder, self.state.update)
        what = f"--resume goes on from {checkpoint}" if checkpoint.is_dir() else "there was nothing to save"
        raise Stopped(f"stopped after update {self.state.update}; {what}", signal=signal)

    def results(self, **results: Any) -> dict[str, Any]:
        """Results of the command: the given ones, updates, divergence, time and speed, then settings and machine."""
        state = self.state
        return {
            "command": self.command,
            **results,
            "updates": state.update,
            "diverged": self.diverged,
            "seconds": state.seconds,
            f"{self.task.unit}_per_second": self.log.rate,
            "dtype": str(self.dtype).removeprefix("torch."),
            "settings": without_local_paths(self.settings),
            "environment": environment(self.process.device),
        }

    def write(self, write: Callable[..., object], *arguments: Any) -> None:
        """Let the main process call `write` with the arguments and the folder of the run; all raise if that fails."""
        what = f"{self.folder}: the results could not be written"
        write_by_one(functools.partial(write, *arguments, self.folder), what, "the checkpoints are")


def print_results(folder: Path, advice: str) -> None:
    """Print the results of a training, and what can be done with them, once for all processes."""
    if PartialState().is_main_process:
        print((folder / "metrics.md").read_text(encoding="utf-8"))
        print(advice)
