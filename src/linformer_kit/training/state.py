"""Training state: update, position in the data, and log. Everything else follows from these."""

from __future__ import annotations

import math
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
