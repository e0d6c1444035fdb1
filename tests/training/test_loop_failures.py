"""The training loop where something goes wrong: updates that are not finite, folders that stay, signals."""

from __future__ import annotations

import math
import re
import signal

import pytest
import torch

from linformer_cli.errors import DivergedError, Stopped
from linformer_kit.files import runs
from tests.training.conftest import after_updates, losses, same_parameters, spoilt

pytestmark = pytest.mark.e2e


def test_an_update_that_is_not_finite_is_not_made(masked, build):
    training = build(task=spoilt(masked(), (2, 0)), save_every=99)
    message = (
        "update 3 (epoch 0.4): expected a finite loss and gradient, got a loss of nan in batch 1 of 1 of process 0; the "
        "update was not made. Lower learning_rate 0.01 or raise max_skipped_updates 0"
    )
    before: list[torch.Tensor] = []
    after_updates(training, lambda: before.__setitem__(slice(None), [p.clone() for p in training.task.parameters()]))
    with pytest.raises(DivergedError, match=f"^{re.escape(message)}$"):
        training.run()
    assert training.state.update == 2
    assert all(map(torch.equal, training.task.parameters(), before))


def test_so_many_updates_may_be_skipped(masked, run, build, tmp_path):
    """They are counted in the log, also of a training that goes on; parameters and moments are as they were."""
    wrong = ((1, 0), (3, 0))
    whole = run("whole", task=spoilt(masked(), *wrong), max_skipped_updates=2)
    assert whole.skipped_updates == 2 and whole.state.update == 7
    assert whole.state.logged("skipped_updates") == {2: 1, 4: 2}
    assert list(whole.state.logged("loss")) == [1, 3, 5, 6, 7]
    assert all(map(math.isfinite, losses(whole)))
    assert {float(state["step"]) for state in whole.optimizer.state.values()} == {5.0}
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    resumed = run("on", task=spoilt(masked(), *wrong), max_skipped_updates=2, checkpoint=checkpoint)
    assert resumed.state.logged("skipped_updates") == {2: 1, 4: 2}
    assert same_parameters(resumed.task.model, whole.task.model)
    training = build("cut", task=spoilt(masked(), *wrong), max_skipped_updates=1, checkpoint=checkpoint)
    with pytest.raises(DivergedError, match=r"^update 4 .* or raise max_skipped_updates 1$"):
        training.run()


def test_an_update_follows_a_skipped_one_in_float16(masked, build):
    """With the scale as it was: a loss of NaN does not mean that float16 has overflowed."""
    training = build(task=spoilt(masked(), (1, 0)), max_skipped_updates=1, fp16=True, logging_steps=2)
    training.run()
    assert training.skipped_updates == 1 and training.state.update == 7
    assert training.state.scaler["scale"] == 65536.0
    assert list(training.state.logged("loss")) == [2, 4, 6]
    assert list(training.state.logged("grad_norm")) == [4, 6]  # update 2 has none


def test_checkpoints_that_cannot_be_removed_do_not_end_a_training(run, monkeypatch, caplog):
    def fail(path):
        raise PermissionError(f"{path}: not yours")

    monkeypatch.setattr(runs, "remove_folder", fail)
    trained = run(save_every=2, save_total_limit=1)
    assert trained.state.update == 7 and "old checkpoints cannot be removed" in caplog.text


def test_a_gradient_that_is_not_finite_counts_too(masked, build):
    task = masked()
    task.model.lm_head.dense.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(DivergedError, match=r"update 1 .* got a gradient norm of (nan|inf); the update was not made"):
        build(task=task).run()


def test_a_signal_before_the_first_update_leaves_nothing(masked, build, tmp_path):
    task = masked()
    measure = task.measure
    task.measure = lambda batch: (signal.raise_signal(signal.SIGTERM), measure(batch))[1]
    with pytest.raises(Stopped, match=r"^stopped after update 0; there was nothing to save$"):
        build(task=task, evaluate_first=True).run()
    assert not list(tmp_path.glob("run/checkpoint-*"))
