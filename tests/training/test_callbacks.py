"""The progress bar: which seconds count, and what a person reads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from linformer_kit.training import callbacks


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    return clock


def test_data_and_updates_count_and_evaluation_and_saving_do_not(clock, capsys):
    bar = callbacks.ProgressBar(each=60, what="tokens", describe=lambda metrics: f"loss {metrics['eval_loss']}")
    state, rest = TrainerState(max_steps=2, global_step=0), (SimpleNamespace(), TrainerControl())
    bar.on_train_begin(rest[0], state, rest[1])
    clock.now += 2  # an evaluation before the first update
    bar.on_evaluate(rest[0], state, rest[1], metrics={"eval_loss": 2.0})
    for waiting in (1, 5):
        clock.now += 1  # the batch and the update
        state.global_step += 1
        bar.on_step_end(rest[0], state, rest[1])
        clock.now += waiting
        bar.on_save(rest[0], state, rest[1])
    bar.on_log(rest[0], state, rest[1], logs={"loss": 1.5})
    bar.on_train_end()
    assert bar.seconds == 2
    assert bar.rate == 60
    shown = capsys.readouterr().err
    assert "update 0: loss 2.0" in shown
    assert "2/2" in shown


@pytest.mark.parametrize(
    ("in_epoch", "taken"), [(None, [16, 16, 16, 16]), (19, [16, 3, 16, 3]), (7, [7, 7, 7, 7]), (32, [16, 16, 16, 16])]
)
def test_the_last_update_of_an_epoch_takes_what_is_left(in_epoch, taken, clock):
    bar, resumed = (callbacks.ProgressBar(each=16, what="texts", describe=str) for _ in range(2))
    bar.in_epoch = in_epoch
    state, rest = TrainerState(max_steps=4, global_step=0), (SimpleNamespace(), TrainerControl())
    bar.on_train_begin(rest[0], state, rest[1])
    for _ in taken:
        clock.now += 2
        state.global_step += 1
        bar.on_step_end(rest[0], state, rest[1])
    state.log_history.append({})
    bar.on_log(rest[0], state, rest[1], logs={"loss": 1.5})
    bar.on_train_end()
    resumed.count_from(state)
    assert bar.rate == resumed.rate == sum(taken) / 8
    assert bar.measures(state, torch.device("cpu"))["texts_per_second"] == sum(taken) / 8


def test_a_drawn_number_of_slots_depends_on_seed_and_update_alone():
    dims = [32, 16, 8]
    first = [callbacks.drawn_projected_dim(dims, seed=1, update=update) for update in range(300)]
    assert first == [callbacks.drawn_projected_dim(dims, seed=1, update=update) for update in range(300)]
    assert first != [callbacks.drawn_projected_dim(dims, seed=2, update=update) for update in range(300)]
    assert all(70 < first.count(dim) < 130 for dim in dims)
