"""Where a training stands (update, position in the data), its log, and the plan: what is due, given only these."""

from __future__ import annotations

import datetime
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from pydantic import AfterValidator, Field, Strict, StrictFloat, StrictInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked
from tqdm import tqdm

from linformer_cli.errors import InputError, input_errors
from linformer_kit.files.folders import TRAINER_STATE
from linformer_kit.files.manifest import read_json
from linformer_kit.report.environment import peak_memory

_Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
_Numbers = dict[str, StrictInt | StrictFloat]
_NO_TRACKER = "none"
_NEEDED = ("global_step", "position", "losses", "log_history", "scaler")


def _with_step(line: _Numbers) -> _Numbers:
    if not isinstance(line.get("step"), int):
        raise ValueError("Input should have a step")
    return line


_Line = Annotated[_Numbers, AfterValidator(_with_step)]  # of a log: names and numbers, with the number of the update


class Position(NamedTuple):
    """Position in the data: the epoch, from 0, and the number of its batches that are done."""

    epoch: _Count = 0
    batches: _Count = 0


@checked(config={"ser_json_inf_nan": "constants", "validate_by_name": True, "validate_by_alias": True})
class TrainingState:
    """The state of a training. In `trainer_state.json`, names are those of transformers where it has them."""

    update: Annotated[_Count, Field(alias="global_step")] = 0  # number of updates done
    position: Position = field(default_factory=Position)  # in the data
    epoch: float = 0.0  # epochs done, with a fraction; derived from the position
    losses: list[StrictFloat] = field(default_factory=list)  # of the updates since the last line of losses in the log
    log: Annotated[list[_Line], Field(alias="log_history")] = field(default_factory=list)
    scaler: _Numbers = field(default_factory=dict)  # float16's loss scaling: the scale, and updates since it changed
    rate: float = 0.0  # learning rate of the last update, as a fraction of the peak
    constants: list[StrictFloat] = field(default_factory=list)  # of the task
    seconds: float = 0.0  # of data loading and updates so far; evaluation and saving do not count
    items: int = 0  # tokens or texts so far

    def add(self, **values: float) -> dict[str, Any]:
        """Add a line to the log."""
        line = {"step": self.update, "epoch": self.epoch, **values}
        self.log.append(line)
        return line

    def logged(self, name: str) -> dict[int, float]:
        """Logged values of a name, by update."""
        return {int(line["step"]): line[name] for line in self.log if name in line}

    def curve(self, name: str) -> list[list[float]]:
        """Logged values of a name, as pairs of update and value."""
        return [[update, value] for update, value in self.logged(name).items()]

    def best(self, metric: str, *, first: int = 1) -> int | None:
        """Update of the best evaluation so far, the first of equals: lowest for `loss`, highest for other metrics.

        Updates before `first` do not count; update 0 has no checkpoint.
        """
        logged, sign = self.logged(f"eval_{metric}"), 1 if metric == "loss" else -1
        updates = [update for update, value in logged.items() if update >= first and not math.isnan(value)]
        return min(updates, key=lambda update: sign * logged[update], default=None)

    def write(self, checkpoint: Path) -> None:
        """Write the state into the folder of a checkpoint."""
        (checkpoint / TRAINER_STATE).write_bytes(_STATE.dump_json(self, indent=1, by_alias=True))


_STATE: TypeAdapter[TrainingState] = TypeAdapter(TrainingState)


def read_state(checkpoint: Path) -> TrainingState:
    """Read the training state of a checkpoint.

    Raises:
        InputError: for a file that is not a training state, with the name of the first invalid value.
    """
    path = checkpoint / TRAINER_STATE
    content = dict.fromkeys(_NEEDED) | read_json(path)
    try:
        return _STATE.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {name}: {first['msg']}, got {first['input']!r:.60}") from None


class TrainingLog:
    """The log of a training: lines in its state, a progress bar, and experiment trackers.

    Args:
        state: The training state; lines are added to its log.
        updates: Total number of updates.
        unit: Unit of speed: tokens or texts.
        folder: Output folder of trackers; its name is that of the run.
        report_to: Names of trackers, separated by commas.
    """

    def __init__(self, state: TrainingState, *, updates: int, unit: str, folder: Path, report_to: str) -> None:
        process = PartialState()
        self._state, self._updates, self._unit, self._device = state, updates, unit, process.device
        self._logged = state.seconds, state.items
        self._started = time.perf_counter()
        self._trackers: list[GeneralTracker] = []
        for name, kind in tracker_classes(report_to).items() if process.is_main_process else ():
            now = f"{datetime.datetime.now():%b%d_%H-%M-%S}_{platform.node()}"
            place = [folder / "runs"] if kind.requires_logging_directory else []
            with input_errors(f"report_to: {name}"):
                self._trackers.append(kind(now if name == "tensorboard" else folder.name, *place))
                self._trackers[-1].start()
        self._bar = tqdm(
            total=updates,
            initial=state.update,
            desc="training",
            unit="update",
            dynamic_ncols=True,
            disable=not process.is_main_process,
            mininterval=0.1 if sys.stderr.isatty() else 5,  # seconds; in a file each state is a line
        )

    @property
    def rate(self) -> float:
        """Mean tokens or texts per second."""
        return self._state.items / self._state.seconds if self._state.seconds else 0.0

    def start_clock(self) -> None:
        """Start to count time."""
        self._started = time.perf_counter()

    def updated(self, items: int) -> None:
        """Count an update, with its number of tokens or texts."""
        self._state.seconds += time.perf_counter() - self._started
        self._state.items += items
        self._bar.update()

    def add_losses(self, *, learning_rate: float, grad_norm: float) -> None:
        """Add a line with the mean loss of the updates since the last such line, speed, time left and memory.

        Learning rate and gradient norm before clipping are of the last update.
        """
        state = self._state
        loss = sum(state.losses) / len(state.losses)
        seconds, items = state.seconds - self._logged[0], state.items - self._logged[1]
        self._logged = state.seconds, state.items
        memory = peak_memory(self._device)
        values = {
            "loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            f"{self._unit}_per_second": items / seconds if seconds else 0.0,
            "seconds_left": (self._updates - state.update) * state.seconds / state.update,
            "memory_mib": None if memory is None else memory / 2**20,
        }
        state.losses.clear()
        self.add({name: value for name, value in values.items() if value is not None})
        rate = f"{self.rate:,.0f}" if self.rate >= 10 else f"{self.rate:.2g}"
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate} {self._unit}/s", refresh=False)

    def add(self, values: dict[str, float], label: str = "") -> None:
        """Add a line of values, and print `label` above the progress bar."""
        line = self._state.add(**values)
        # TensorBoard and others group values by the part before a slash.
        grouped = {
            f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": value
            for name, value in line.items()
        }
        for tracker in self._trackers:
            tracker.log(grouped, step=self._state.update)
        if label and PartialState().is_main_process:
            self._bar.write(f"update {self._state.update}: {label}", file=sys.stderr)

    def close(self) -> None:
        """Close the progress bar and finish the trackers."""
        self._bar.close()
        for tracker in self._trackers:
            tracker.finish()


def tracker_classes(report_to: str) -> dict[str, Any]:
    """Classes of the trackers of `report_to`, by name.

    Raises:
        InputError: for trackers that are unknown or not installed.
    """
    names = [name for each in report_to.split(",") if (name := each.strip()) not in ("", _NO_TRACKER)]
    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
            raise InputError(f"report_to: expected {known} or {_NO_TRACKER}, got {name!r}")
        if name not in installed:
            raise InputError(f"report_to: expected a tracker whose package is installed, got {name}")
    return {name: LOGGER_TYPE_TO_CLASS[name] for name in names}


@dataclass(frozen=True)
class Plan:
    """When to evaluate, save and stop: functions of the update and the log only, so that resume is exact."""

    updates: int  # total number
    schedule: Callable[[int], float]  # learning rate of an update, by its number from 0, as a fraction of the peak
    seed: int  # of dropout
    evaluate_every: int | None  # updates between evaluations; None: evaluate at the end of each epoch
    save_every: int | None = None  # updates between checkpoints; None: after each evaluation
    evaluate_first: bool = False  # whether to evaluate before the first update
    metric: str | None = None  # selects the best checkpoint, which is kept and loaded at the end; None: the last one
    patience: int | None = None  # stop after this many evaluations without a better metric; None: no early stopping
    restart: int | None = None  # update before which AdamW's moments are reset

    def is_finished(self, state: TrainingState) -> bool:
        """Whether training ends: all updates are done, or early stopping applies."""
        if self.patience is None or self.metric is None:
            return state.update >= self.updates
        best = state.best(self.metric) or 0
        waited = sum(update > best for update in state.logged("eval_loss"))
        return state.update >= self.updates or waited >= self.patience

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


def learning_rate_schedule(kind: str, *, updates: int, warmup_steps: float) -> Callable[[int], float]:
    """The schedule: maps the number of an update, from 0, to its learning rate as a fraction of the peak.

    It is that of transformers without its first update, whose rate is 0: with a warm-up of 2 it starts 1/3, 2/3, 1.

    Args:
        kind: Decay after the warm-up: `linear` or `cosine` to 0, or `constant`.
        updates: Total number of updates.
        warmup_steps: Updates of linear warm-up; a value below 1 is a fraction of all updates.
    """
    warmup = int(warmup_steps) if warmup_steps >= 1 else math.ceil(updates * warmup_steps)

    def share(update: int) -> float:
        if update < warmup:
            return (update + 1) / (warmup + 1)
        done = (update - warmup) / max(1, updates - warmup)
        if kind == "cosine":
            return max(0.0, 0.5 * (1 + math.cos(math.pi * done)))
        return 1.0 if kind == "constant" else max(0.0, 1 - done)

    return share
