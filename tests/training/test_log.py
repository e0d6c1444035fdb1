"""The log: measured time, fields of a line, printed text, and trackers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from linformer_kit.training import state as training_log
from linformer_kit.training.state import TrainingLog, TrainingState


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when told to."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(training_log.time, "perf_counter", lambda: clock.now)
    return clock


def make(state: TrainingState, updates: int = 2, folder: Path = Path(), report_to: str = "none") -> TrainingLog:
    return TrainingLog(state, updates=updates, unit="tokens", folder=folder, report_to=report_to)


def updated(log: TrainingLog, state: TrainingState, clock: SimpleNamespace, seconds: float, items: int) -> None:
    log.start_clock()
    clock.now += seconds
    state.update += 1
    state.losses.append(1.5)
    log.updated(items)


def test_a_line_says_how_fast_how_long_and_how_large(clock, monkeypatch):
    """The speed of its own updates, the time left by all, and the mean loss."""
    monkeypatch.setattr(training_log, "peak_memory", lambda _: 3 * 2**20)
    state = TrainingState()
    log = make(state, updates=10)
    updated(log, state, clock, 1, 50)
    log.add_losses(learning_rate=1e-2, grad_norm=0.5)
    assert state.losses == []
    for loss in (1.0, 2.0):
        updated(log, state, clock, 4, 50)
        state.losses[-1] = loss
    log.add_losses(learning_rate=5e-3, grad_norm=0.25)
    log.close()
    line = state.log[-1]
    assert (line["step"], line["loss"], line["learning_rate"], line["grad_norm"]) == (3, 1.5, 5e-3, 0.25)
    assert line["tokens_per_second"] == 100 / 8 and line["memory_mib"] == 3
    assert line["seconds_left"] == 7 * 9 / 3 and log.rate == 150 / 9


def test_time_counts_on_after_a_resume(clock):
    state = TrainingState()
    log = make(state, updates=4)
    for _ in range(2):
        updated(log, state, clock, 3, 60)
    log.add({"eval_loss": 1.0})
    log.close()
    clock.now += 1000
    resumed = make(state, updates=4)
    assert (state.seconds, resumed.rate) == (6, 20)
    updated(resumed, state, clock, 4, 30)
    resumed.add_losses(learning_rate=0.0, grad_norm=0.0)
    resumed.close()
    assert (state.seconds, resumed.rate) == (10, 15)
    assert state.log[-1]["tokens_per_second"] == 30 / 4 and state.log[-1]["seconds_left"] == 10 / 3


def test_trackers_get_the_lines(run, tmp_path):
    """TensorBoard's below `runs`, in a folder of each start, grouped by what they are of."""
    training = run(report_to="tensorboard", updates=3)
    (folder,) = (tmp_path / "run" / "runs").iterdir()
    (events,) = {path.parent for path in folder.rglob("events.out.tfevents*")}
    found = EventAccumulator(str(events)).Reload()
    assert {"train/loss", "train/learning_rate", "eval/loss"} <= set(found.Tags()["scalars"])
    assert {event.step: pytest.approx(event.value) for event in found.Scalars("train/loss")} == training.state.logged("loss")  # fmt: skip
    assert [event.step for event in found.Scalars("eval/loss")] == [3]
