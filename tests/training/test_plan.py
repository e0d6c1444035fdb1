"""The schedule of evaluations and checkpoints: functions of the update and the log only."""

from __future__ import annotations

import dataclasses
import math

import pytest

from linformer_kit.training.state import TrainingState
from tests.training.conftest import small_plan


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
        ({"evaluate_every": 3, "save_every": None}, [3, 6, 7], [3, 6, 7]),
        ({"evaluate_every": 99, "save_every": 99, "evaluate_first": True}, [0, 7], [7]),
        ({"evaluate_every": None, "save_every": None}, [5, 7], [5, 7]),
        ({"evaluate_every": None, "save_every": 3, "evaluate_first": True}, [0, 5, 7], [3, 6, 7]),
    ],
    ids=str,
)
def test_what_falls_due_when(fields, evaluated, saved):
    """In turn, or at the end of each epoch of 5 updates, and at the end; a checkpoint never at the start."""
    plan = small_plan(7, **fields)
    assert due(plan.evaluation_is_due, 7) == evaluated
    assert due(plan.checkpoint_is_due, 7) == saved
    assert due(plan.is_finished, 9) == [7, 8, 9]


@pytest.mark.parametrize("update", [0, 3, 7])
def test_what_the_log_has_is_not_measured_again(update):
    plan = small_plan(7, evaluate_every=3, evaluate_first=True)
    assert plan.evaluation_is_due(state_of(update))
    assert not plan.evaluation_is_due(state_of(update, eval_loss={update: 1.0}))


@pytest.mark.parametrize(
    ("metric", "values", "ends"),
    [
        ("loss", {2: 3.0, 4: 2.0, 6: 1.0}, False),
        ("loss", {2: 1.0, 4: 2.0}, False),
        ("loss", {2: 1.0, 4: 2.0, 6: 1.0}, True),
        ("loss", {2: math.nan, 4: math.nan}, True),
        ("accuracy", {2: 0.75, 4: 0.5, 6: 0.75}, True),
        ("accuracy", {2: 0.75, 4: 0.5, 6: 1.0}, False),
        (None, {2: 1.0, 4: 2.0, 6: 3.0}, False),
    ],
)
def test_patience_is_lost_without_a_better_metric(metric, values, ends):
    """A checkpoint is due then; without patience, or a metric, it is never lost."""
    plan = small_plan(20, metric=metric, patience=2, save_every=19)
    logged = {"eval_loss": dict.fromkeys(values, 1.0), f"eval_{metric or 'loss'}": values}
    state = TrainingState()
    for state.update in values:
        state.add(**{name: by_update[state.update] for name, by_update in logged.items()})
    assert plan.is_finished(state) == plan.checkpoint_is_due(state) == ends
    assert not dataclasses.replace(plan, patience=None).is_finished(state)


def test_the_result_is_the_best_or_the_last():
    state = state_of(9, eval_loss={0: 0.5, 3: 2.0, 6: 1.0, 9: 3.0})
    assert small_plan(9, metric="loss").result_update(state) == 6, "of the start there is no checkpoint"
    assert small_plan(9).result_update(state) == 9
    assert small_plan(9, metric="accuracy").result_update(state) == 9
