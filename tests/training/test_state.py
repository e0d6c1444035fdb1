"""Where a training stands: loading restores it, and it decides what is due; the log: time, lines and trackers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from linformer_kit import InputError
from linformer_kit.training import state as training_log
from linformer_kit.training.state import Position, TrainingLog, TrainingState, learning_rate_schedule, read_state
from tests.training.conftest import small_plan

LOG = [{"step": 2, "epoch": 0.4, "loss": 5.25}, {"step": 3, "epoch": 0.6, "eval_loss": math.nan}]


def write(folder, **changed: object):
    """A checkpoint's state with some values changed; those that are `...` are left out."""
    TrainingState(
        3, Position(0, 3), 0.6, [1.5, math.inf], LOG, {"scale": 65536.0, "_growth_tracker": 2}, 0.1, [0.3]
    ).write(folder)
    path = folder / "trainer_state.json"
    content = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))
    return folder


def test_a_state_comes_back(tmp_path):
    state = read_state(write(tmp_path))
    assert (state.update, state.position) == (3, Position(0, 3))
    assert state.losses == [1.5, math.inf] and state.scaler == {"scale": 65536.0, "_growth_tracker": 2}
    assert state.log[0] == LOG[0] and math.isnan(state.log[1]["eval_loss"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("global_step", [..., None, -1, 1.0, True, "3", 2**63]),
        ("position", [..., None, 3, [0, 1, 2], [0, -1], [0, 1.0], [True, 1], "01"]),
        ("losses", [..., 1.5, ["1.5"], [None], [True]]),
        ("constants", [None, 1.5, ["1.5"], [None]]),
        ("scaler", [..., [], {"scale": "1"}, {"scale": None}]),
        ("log_history", [..., {}, [3], [{"loss": 1.0}], [{"step": 1.5}], [{"step": 1, "loss": "1"}]]),
    ],
)
def test_what_can_be_no_state_is_rejected(name, values, tmp_path):
    for value in values:
        path = write(tmp_path, **{name: value}) / "trainer_state.json"
        with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {name}')}.*: .*, got "):
            read_state(tmp_path)


# What is due ---------------------------------------------------------------------------------------------------------


def state_of(update: int, *, epoch: float | None = None, **logged: dict[int, float]) -> TrainingState:
    """Where a training stands whose log has these values by update."""
    state = TrainingState()
    for name, values in logged.items():
        for state.update, value in values.items():
            state.add(**{name: value})
    state.update, state.epoch = update, update / 5 if epoch is None else epoch
    return state


def due(ask, updates: int = 12) -> list[int]:
    return [update for update in range(updates + 1) if ask(state_of(update))]


@pytest.mark.parametrize(
    ("fields", "evaluated", "saved"),
    [
        ({"evaluate_every": 3, "save_every": 2}, [3, 6, 7], [2, 4, 6, 7]),
        ({"evaluate_every": 99, "save_every": 99, "evaluate_first": True}, [0, 7], [7]),
        ({"evaluate_every": None, "save_every": None}, [5, 7], [5, 7]),
    ],
    ids=str,
)
def test_what_falls_due_when(fields, evaluated, saved):
    """In turn, or at the end of each epoch of 5 updates, and at the end; a checkpoint never at the start."""
    plan = small_plan(7, **fields)
    assert due(plan.evaluation_is_due, 7) == evaluated
    assert due(plan.checkpoint_is_due, 7) == saved
    assert due(plan.is_finished, 9) == [7, 8, 9]


@pytest.mark.parametrize(("updates", "warmup"), [(17, 5), (23, 0.3)])
@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("linear", transformers.get_linear_schedule_with_warmup),
        ("cosine", transformers.get_cosine_schedule_with_warmup),
        ("constant", lambda optimizer, warmup, _: transformers.get_constant_schedule_with_warmup(optimizer, warmup)),
    ],
)
def test_schedules_are_those_of_transformers(kind, theirs, updates, warmup, tmp_path):
    """The learning rate of every update, but for theirs of the first one, 0, which would be an update without effect."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=3e-3)
    arguments = transformers.TrainingArguments(str(tmp_path), warmup_steps=warmup, report_to="none", use_cpu=True)
    schedule = theirs(optimizer, arguments.get_warmup_steps(updates) + 1, updates + 1)
    ours = learning_rate_schedule(kind, updates=updates, warmup_steps=warmup)
    for update in range(updates):
        optimizer.step()
        schedule.step()
        assert 3e-3 * ours(update) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12, abs=1e-18), update
        assert ours(update) > 0


def test_a_line_says_how_fast_how_long_and_how_large(monkeypatch):
    """The speed of its own updates, the time left by all, and the mean loss."""
    now = [100.0]
    monkeypatch.setattr(training_log.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(training_log, "peak_memory", lambda _: 3 * 2**20)
    state = TrainingState()
    log = TrainingLog(state, updates=10, unit="tokens", folder=Path(), report_to="none")
    for seconds, loss in ((1, 7.0), (4, 1.0), (4, 2.0)):
        log.start_clock()
        now[0] += seconds
        state.update += 1
        state.losses.append(loss)
        log.updated(50)
        if state.update != 2:
            log.add_losses(learning_rate=5e-3, grad_norm=0.25)
    log.close()
    line = state.log[-1]
    assert (line["step"], line["loss"], line["learning_rate"], line["grad_norm"]) == (3, 1.5, 5e-3, 0.25)
    assert line["tokens_per_second"] == 100 / 8 and line["memory_mib"] == 3
    assert line["seconds_left"] == 7 * 9 / 3 and log.rate == 150 / 9


def test_trackers_get_the_lines(run, tmp_path):
    """TensorBoard's below `runs`, in a folder of each start, grouped by what they are of."""
    training = run(report_to="tensorboard", updates=3)
    (folder,) = (tmp_path / "run" / "runs").iterdir()
    (events,) = {path.parent for path in folder.rglob("events.out.tfevents*")}
    found = EventAccumulator(str(events)).Reload()
    assert {"train/loss", "train/learning_rate", "eval/loss"} <= set(found.Tags()["scalars"])
    assert {event.step: pytest.approx(event.value) for event in found.Scalars("train/loss")} == training.state.logged("loss")  # fmt: skip
    assert [event.step for event in found.Scalars("eval/loss")] == [3]
