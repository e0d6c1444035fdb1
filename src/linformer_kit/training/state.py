"""Where a training stands (update, position in the data, log), and the plan: what is due, given only that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from linformer_kit.errors import InputError
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import TRAINER_STATE

_LARGEST = 2**63 - 1


class Position(NamedTuple):
    """Position in the data: the epoch, from 0, and the number of its batches that are done."""

    epoch: int = 0
    batches: int = 0


@dataclass
class TrainingState:
    """The state of a training.

    Attributes:
        update: Number of updates done.
        position: Position in the data.
        epoch: Epochs done, with a fraction; derived from the position.
        losses: Losses of the updates since the last line of losses in the log.
        log: Lines of the log: each a dict of names and numbers, with its `step`.
        scaler: State of float16's loss scaling: the scale, and the updates since it changed.
    """

    update: int = 0
    position: Position = field(default_factory=Position)
    epoch: float = 0.0
    losses: list[float] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, float] = field(default_factory=dict)

    def add(self, **values: float) -> dict[str, Any]:
        """Add a line to the log."""
        line = {"step": self.update, "epoch": self.epoch, **values}
        self.log.append(line)
        return line

    def logged(self, name: str) -> dict[int, float]:
        """Logged values of a name, by update."""
        return {line["step"]: line[name] for line in self.log if name in line}

    def best(self, metric: str) -> int | None:
        """Update of the best evaluation so far, the first of equals: lowest for `loss`, highest for other metrics.

        Update 0 does not count, since it has no checkpoint.
        """
        values = self.logged(f"eval_{metric}")
        found = {update: value for update, value in values.items() if update > 0 and not math.isnan(value)}
        sign = 1 if metric == "loss" else -1
        return min(found, key=lambda update: sign * found[update], default=None)

    def to_json(self) -> dict[str, Any]:
        """Content of the file in a checkpoint, with transformers' names where they exist."""
        return {
            "global_step": self.update,
            "epoch": self.epoch,
            "position": list(self.position),
            "losses": self.losses,
            "scaler": self.scaler,
            "log_history": self.log,
        }


@dataclass(frozen=True)
class Plan:
    """When to evaluate, save and stop: functions of the update and the log only, so that resume is exact.

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


def read_state(checkpoint: Path) -> TrainingState:
    """Read the training state of a checkpoint.

    Raises:
        InputError: for a file that is not a training state, with the name of the first invalid value.
    """
    path = checkpoint / TRAINER_STATE
    content = read_json(path)
    for name, (expected, fits) in _FIELDS.items():
        if not fits(value := content.get(name)):
            shown = repr(value)
            raise InputError(f"{path}: expected {expected} as {name}, got {shown[:60]}{'…' * (len(shown) > 60)}")
    return TrainingState(
        content["global_step"],
        Position(*content["position"]),
        losses=content["losses"],
        log=content["log_history"],
        scaler=content["scaler"],
    )


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value is an int from `least` to 2⁶³ - 1; bool does not count."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def is_number(value: Any) -> bool:
    """Whether a value is a float, NaN included, or an int of at most 63 bits."""
    return isinstance(value, float) or is_count(value, -_LARGEST)


def _is_log(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(line, dict) and is_count(line.get("step")) and all(map(is_number, line.values())) for line in value
    )


_FIELDS: dict[str, Any] = {
    "global_step": ("a count", is_count),
    "position": ("two counts", lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_count, value))),
    "losses": ("a list of numbers", lambda value: isinstance(value, list) and all(map(is_number, value))),
    "scaler": ("numbers by name", lambda value: isinstance(value, dict) and all(map(is_number, value.values()))),
    "log_history": ("a list of names and numbers, each with its step", _is_log),
}
