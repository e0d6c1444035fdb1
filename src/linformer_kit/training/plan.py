"""The training plan: when to evaluate, save and stop. It depends on the update and the log only, so resume is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from linformer_kit.training.state import TrainingState


@dataclass(frozen=True)
class Plan:
    """When to evaluate, save and stop.

    Attributes:
        updates: Total number of updates.
        schedule: Learning rate of an update, by its number from 0, as a fraction of the peak.
        seed: Seed of dropout.
        evaluate_every: Updates between evaluations; None: evaluate at the end of each epoch.
        save_every: Updates between checkpoints; None: after each evaluation.
        evaluate_first: Whether to evaluate before the first update.
        metric: Metric that selects the best checkpoint, which is kept and loaded at the end; None: use the last one.
        patience: Stop after this many evaluations without a better metric; None: no early stopping.
        restart: Update before which AdamW's moments are reset; None: none.
    """

    updates: int
    schedule: Callable[[int], float]
    seed: int
    evaluate_every: int | None
    save_every: int | None
    evaluate_first: bool = False
    metric: str | None = None
    patience: int | None = None
    restart: int | None = None

    def is_finished(self, state: TrainingState) -> bool:
        """Whether training ends: all updates are done, or early stopping applies."""
        return state.update >= self.updates or self._stops_early(state)

    def evaluation_is_due(self, state: TrainingState) -> bool:
        """Whether to evaluate now."""
        due = self._falls_due(self.evaluate_every, state) if state.update else self.evaluate_first
        return due and state.update not in state.logged("eval_loss")

    def checkpoint_is_due(self, state: TrainingState) -> bool:
        """Whether to save now."""
        every = self.evaluate_every if self.save_every is None else self.save_every
        return state.update > 0 and (self._falls_due(every, state) or self.is_finished(state))

    def result_update(self, state: TrainingState) -> int:
        """The update whose weights are the result: the last one, or the best by the metric."""
        best = None if self.metric is None else state.best(self.metric)
        return state.update if best is None else best

    def _falls_due(self, every: int | None, state: TrainingState) -> bool:
        """Whether the update is a multiple of `every`, or with None the end of an epoch, or the last update."""
        regular = float(state.epoch).is_integer() if every is None else state.update % every == 0
        return regular or state.update == self.updates

    def _stops_early(self, state: TrainingState) -> bool:
        if self.patience is None or self.metric is None:
            return False
        best = state.best(self.metric) or 0
        return sum(update > best for update in state.logged("eval_loss")) >= self.patience
