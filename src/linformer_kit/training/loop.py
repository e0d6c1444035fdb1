"""The training loop: evaluate, save, update.

Each step is a function of the update number, the position in the data, the rank and the log. All but the rank are
saved in each checkpoint; data order, masks, learning rate and dropout seeds depend on nothing else. So a resumed
training equals an uninterrupted one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from linformer_cli.errors import DivergedError, InputError, Stopped
from linformer_cli.settings import TrainingSettings
from linformer_kit.files.manifest import damage
from linformer_kit.files.runs import checkpoint_path, rotate_checkpoints
from linformer_kit.training.batches import Batches, UpdateBatches, to_device, validation_batches
from linformer_kit.training.checkpoint import load_moments, load_weights, save_checkpoint
from linformer_kit.training.engine import Engine
from linformer_kit.training.log import TrainingLog
from linformer_kit.training.process import StopRequest, seed_generators, stop_requests
from linformer_kit.training.state import Plan, TrainingState, read_state
from linformer_kit.training.tasks.base import Task

logger = logging.getLogger(__name__)


class Training:
    """One training of a task.

    Args:
        task: Model, batches, loss and metrics.
        settings: The training settings.
        plan: Number of updates, learning rates, and when to evaluate and save.
        folder: Folder of the checkpoints.
        checkpoint: Checkpoint to resume from; None: start from the beginning.

    Attributes:
        state: The training state.
        log: Progress bar, log and trackers.
        diverged: Where and why training diverged, or None.

    Raises:
        InputError: for a checkpoint of another training.
    """

    def __init__(
        self,
        task: Task,
        settings: TrainingSettings,
        plan: Plan,
        folder: Path,
        *,
        checkpoint: Path | None = None,
    ) -> None:
        self.task, self.settings, self.plan, self.folder = task, settings, plan, folder
        self.state = TrainingState() if checkpoint is None else read_state(checkpoint)
        if checkpoint is not None:
            load_weights(task.model, checkpoint)
        self.engine = Engine(task, settings)
        if checkpoint is not None:
            load_moments(task.model, self.engine.optimizer, checkpoint)
            self.engine.load_scaler(self.state.scaler)
        self._saved = None if checkpoint is None else (self.state.update, len(self.state.log))
        self._batches = Batches(task, settings)
        self.state.epoch = self._batches.epochs(self.state.position)
        self._request = StopRequest()
        self.diverged: str | None = None

    def run(self) -> None:
        """Train to the end.

        Raises:
            DivergedError: before a non-finite update, if no more of them may be skipped.
            Stopped: after a signal, once the current update is done and saved in a checkpoint.
        """
        state, plan = self.state, self.plan
        updates = self._batches.updates(state.position)
        self.log = TrainingLog(
            state, updates=plan.updates, unit=self.task.unit, folder=self.folder, report_to=self.settings.report_to
        )
        try:
            with stop_requests() as self._request:
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
                self._stop_if_asked()
        finally:
            updates.close()
            self.log.close()

    def _update(self, data: UpdateBatches) -> None:
        """Make one update, or skip it if its loss or gradient is not finite."""
        task, state, engine = self.task, self.state, self.engine
        if state.update == self.plan.restart:
            engine.optimizer.state.clear()
        task.train()
        task.begin(state.update)
        total = engine.total_labels(data.batches)
        losses: list[Tensor] = []
        for number, batch in enumerate(data.batches):
            seed_generators(self.plan.seed, state.update, number, engine.rank)
            losses.append(engine.backward(batch, total, number, len(data.batches)))
        norm = engine.clip(self.settings.max_grad_norm)
        loss, wrong = engine.checked_loss(losses, norm)
        share = self.plan.schedule(state.update)
        if wrong:
            self._check_may_skip(wrong)
            engine.skip()
        else:
            engine.step(share)
            state.losses.append(loss)
        task.begin(None)
        state.update += 1
        state.position, state.epoch = data.position, self._batches.epochs(data.position)
        self.log.updated(data.sequences * task.size)
        if wrong:
            self.log.add({"skipped_updates": self.skipped_updates + 1})
        if state.update % self.settings.logging_steps == 0 and state.losses:
            rate = share * self.settings.learning_rate
            self.log.add_losses(learning_rate=rate, grad_norm=None if wrong else norm)

    @property
    def skipped_updates(self) -> int:
        """Updates that were skipped because their loss or gradient was not finite."""
        return len(self.state.logged("skipped_updates"))

    def _check_may_skip(self, wrong: str) -> None:
        update, settings = self.state.update + 1, self.settings
        if self.skipped_updates >= settings.max_skipped_updates:
            raise DivergedError(
                f"update {update} (epoch {self.state.epoch:.4g}): expected a finite loss and gradient, got {wrong}; "
                f"the update was not made. Lower learning_rate {settings.learning_rate} or raise max_skipped_updates "
                f"{settings.max_skipped_updates}"
            )
        logger.warning("update %s is skipped: %s", update, wrong)

    @property
    def result_update(self) -> int:
        """The update whose weights are the result."""
        return self.plan.result_update(self.state)

    def measure(self) -> tuple[np.ndarray, ...]:
        """Measure each validation sequence, in their order.

        Raises:
            Stopped: after a signal; the training is saved in a checkpoint.
        """
        return measure(self.task, self.settings, self.engine, self._stop_if_asked)

    def _evaluate(self) -> None:
        metrics = self.task.metrics(*self.measure())
        self.log.add({f"eval_{name}": value for name, value in metrics.items()}, self.task.describe(metrics))

    def _save(self) -> None:
        """Save a checkpoint, unless the newest one has this state, and remove old ones."""
        state, plan = self.state, self.plan
        here = (state.update, len(state.log))
        if state.update == 0 or self._saved == here:
            return
        state.scaler = self.engine.scaler_state()
        place = checkpoint_path(self.folder, state.update)
        save_checkpoint(place, self.task.model, self.task.tokenizer, self.engine.optimizer, state)
        self._saved = here
        if self.engine.rank == 0:
            keep = None if plan.metric is None else plan.result_update(state)
            try:
                rotate_checkpoints(self.folder, self.settings.save_total_limit, keep=keep)
            except OSError as error:  # the training itself can go on
                logger.warning("%s: old checkpoints cannot be removed: %s", self.folder, error)

    def _load_best(self) -> None:
        """Load the weights of the best checkpoint, if a metric selects the result and it is not the last update."""
        if (best := self.result_update) == self.state.update:
            return
        checkpoint = checkpoint_path(self.folder, best)
        if wrong := damage(checkpoint, only="*.safetensors"):
            raise InputError(f"{self.folder}: expected its best checkpoint, got {wrong}")
        load_weights(self.task.model, checkpoint)

    def _stop_if_asked(self) -> None:
        """After a signal to stop in any process, save a checkpoint and raise `Stopped` in all of them."""
        signal = self.engine.largest(self._request.signal)
        if not signal:
            return
        self._save()
        checkpoint = checkpoint_path(self.folder, self.state.update)
        what = f"--resume goes on from {checkpoint}" if checkpoint.is_dir() else "there was nothing to save"
        raise Stopped(f"stopped after update {self.state.update}; {what}", signal=signal)


def measure(
    task: Task, settings: TrainingSettings, engine: Engine, before_each: Callable[[], object] = lambda: None
) -> tuple[np.ndarray, ...]:
    """Measure each validation sequence, in their order, split over all processes.

    Args:
        task: The task to evaluate.
        settings: Batch size and data workers.
        engine: Device and precision.
        before_each: Called before each batch, in all processes.

    Returns:
        One array of `[sequences, ...]` for each tensor of `Task.measure`.
    """
    task.eval()
    task.begin(None)
    batches: list[tuple[np.ndarray, ...]] = []
    for batch, rows in validation_batches(task, settings):
        before_each()
        with torch.no_grad(), engine.autocast():
            measured = task.measure(to_device(batch, engine.device))
        batches.append(tuple(_array(tensor[:rows]) for tensor in measured))
    # Process r has measured batches r, r + processes, …
    in_order = [batch for group in zip(*gather_object([batches]), strict=True) for batch in group]
    return tuple(np.concatenate(parts) for parts in zip(*in_order, strict=True))


def _array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to numpy; floats become float32, since numpy has no bfloat16."""
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
