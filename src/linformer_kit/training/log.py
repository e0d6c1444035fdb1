"""Training output: progress bar, log lines and experiment trackers."""

from __future__ import annotations

import datetime
import platform
import time
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from tqdm import tqdm

from linformer_cli.errors import InputError, input_errors
from linformer_kit.environment import most_bytes
from linformer_kit.training.state import TrainingState

_NO_TRACKER = "none"


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

    def add_losses(self, *, learning_rate: float, grad_norm: float | None) -> None:
        """Add a line with the mean loss of the updates since the last such line, speed, time left and memory.

        Learning rate and gradient norm before clipping are of the last update; without a norm, it was skipped.
        """
        state = self._state
        loss = sum(state.losses) / len(state.losses)
        seconds, items = state.seconds - self._logged[0], state.items - self._logged[1]
        self._logged = state.seconds, state.items
        values = {"loss": loss, "learning_rate": learning_rate}
        if grad_norm is not None:
            values["grad_norm"] = grad_norm
        values[f"{self._unit}_per_second"] = items / seconds if seconds else 0.0
        values["seconds_left"] = (self._updates - state.update) * state.seconds / state.update
        if (memory := most_bytes(self._device)) is not None:
            values["memory_mib"] = memory / 2**20
        state.losses.clear()
        self.add(values)
        rate = f"{self.rate:,.0f}" if self.rate >= 10 else f"{self.rate:.2g}"
        self._bar.set_postfix_str(f"loss {loss:.3f}, {rate} {self._unit}/s", refresh=False)

    def add(self, values: dict[str, float], label: str = "") -> None:
        """Add a line of values, and print `label` above the progress bar."""
        line = self._state.add(**values)
        for tracker in self._trackers:
            tracker.log({_grouped(name): value for name, value in line.items()}, step=self._state.update)
        if label and not self._bar.disable:
            self._bar.write(f"update {self._state.update}: {label}", file=self._bar.fp)

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


def _grouped(name: str) -> str:
    """Name for trackers: TensorBoard and others group values by the part before a slash."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
