"""The training loop: exact resume, evaluation, and when it evaluates, saves and ends."""

from __future__ import annotations

import math
import re
import signal
from pathlib import Path

import pytest
import torch

from linformer_cli.errors import DivergedError, Stopped
from linformer_kit import InputError, LinformerForMaskedLM
from linformer_kit.files import folders
from linformer_kit.training.run import Run
from tests.training.conftest import after_updates, losses, same_parameters

pytestmark = pytest.mark.e2e


# Exact: resume, seeds, evaluation ------------------------------------------------------------------------------------


def test_resumed_equals_uninterrupted(run, tmp_path):
    """In mid-epoch (update 3 of 5) and in the second epoch (update 6), dropout, masks and the log included."""
    whole = run("whole")
    assert len(set(losses(whole))) == 7
    for update in (3, 6):
        resumed = run(f"after{update}", checkpoint=tmp_path / "whole" / f"checkpoint-{update}")
        assert same_parameters(resumed.task.model, whole.task.model)
        assert losses(resumed) == losses(whole)
        assert resumed.state.logged("eval_loss") == whole.state.logged("eval_loss")
        assert (resumed.state.position, resumed.state.epoch) == (whole.state.position, whole.state.epoch)


def test_a_longer_schedule_is_said(run, tmp_path, caplog):
    """With the learning rates before and after; a resume with the same schedule, and one at its end, says nothing."""
    run("whole")
    for update, updates, said in ((3, 7, 0), (7, 7, 0), (6, 14, 1)):
        caplog.clear()
        run(f"to{updates}", checkpoint=tmp_path / "whole" / f"checkpoint-{update}", updates=updates)
        assert caplog.text.count("moves from 0.00286 (29 % of its peak) to 0.00571 (57 %)") == said
        assert caplog.text.count("another schedule") == said


def test_evaluation_changes_nothing(run):
    """Nor do lines of the log, however many there are; dropout is on again after each."""
    seldom = run("seldom", evaluate_every=7, logging_steps=7)
    often = run("often", evaluate_every=1, evaluate_first=True)
    assert same_parameters(seldom.task.model, often.task.model)
    assert list(often.state.logged("eval_loss")) == list(range(8)) and list(seldom.state.logged("eval_loss")) == [7]
    assert losses(seldom) == [pytest.approx(sum(losses(often)) / 7)]
    assert often.state.logged("eval_loss")[7] == seldom.state.logged("eval_loss")[7]


# What falls due ------------------------------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))


def test_what_is_finished_is_trained_no_further(run, tmp_path):
    whole = run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = run(checkpoint=tmp_path / "run" / "checkpoint-7")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert same_parameters(again.task.model, whole.task.model) and again.state.log == whole.state.log


def test_moments_are_reset_before_one_update(build, tmp_path):
    """Before that one, also if the training goes on from just there, and before no other."""
    known: list[int] = []

    def watched(folder: str, **more: object) -> Run:
        training = build(folder, restart=3, **more)
        training.optimizer.register_step_pre_hook(lambda *_: known.append(len(training.optimizer.state)))
        training.loop()
        return training

    whole = watched("whole")
    count = len(list(whole.task.model.parameters()))
    assert known == [0, count, count, 0, count, count, count]
    known.clear()
    resumed = watched("resumed", checkpoint=tmp_path / "whole" / "checkpoint-3")
    assert known == [0, count, count, count] and same_parameters(resumed.task.model, whole.task.model)


# The best evaluation -------------------------------------------------------------------------------------------------


def told(task, **metrics: list[float]):
    """A task whose evaluations give these values, one after the other."""
    values = iter([dict(zip(metrics, row, strict=True)) for row in zip(*metrics.values(), strict=True)])
    task.metrics = lambda *_: next(values)
    return task


@pytest.mark.parametrize(
    ("metric", "values", "best"), [("loss", [math.nan, 1.0, 1.0, 2.5], 2), ("accuracy", [0.1, 0.3, 0.3, 0.4], 4)]
)
def test_the_best_is_kept_and_loaded(masked, run, tmp_path, metric, values, best):
    """The lowest loss or the highest of another metric, the first of equals, whatever its age."""
    lists = {"loss": values} if metric == "loss" else {"accuracy": values, "loss": [1.0] * 4}
    fields = {"metric": metric, "evaluate_every": 1, "save_every": 1, "updates": 4, "save_total_limit": 1}
    training = run(task=told(masked(), **lists), **fields)
    assert training.plan.result_update(training.state) == best and checkpoints(tmp_path / "run") == sorted({best, 4})
    saved = LinformerForMaskedLM.from_pretrained(tmp_path / "run" / f"checkpoint-{best}")
    last = LinformerForMaskedLM.from_pretrained(tmp_path / "run" / "checkpoint-4")
    assert same_parameters(training.task.model, saved) and same_parameters(saved, last) == (best == 4)
    assert training.task.model.get_output_embeddings().weight is training.task.model.get_input_embeddings().weight


@pytest.mark.parametrize(("values", "said"), [([0.5, 0.25, 0.3], True), ([0.5, 0.5, 0.3], False)])
def test_a_start_that_was_better_is_said(masked, run, caplog, values, said):
    """It has no checkpoint."""
    fields = {"metric": "accuracy", "evaluate_every": 1, "save_every": 1, "updates": 2, "evaluate_first": True}
    run(task=told(masked(), accuracy=values, loss=[1.0] * 3), **fields)
    warning = "validation accuracy was 0.5000 before the first update and is 0.3000 at best since; lower learning_rate"
    assert (warning in caplog.text) == said


def test_patience_ends_a_training(masked, run, tmp_path):
    fields = {"metric": "loss", "evaluate_every": 2, "save_every": 2, "updates": 20, "patience": 2}
    values = [3.0, 1.0, 2.0, 1.5, *[9.0] * 6]
    whole = run(task=told(masked(), loss=values), **fields)
    assert whole.state.update == 8 and whole.plan.result_update(whole.state) == 4
    # A training that is resumed counts on.
    resumed = run(task=told(masked(), loss=values[3:]), **fields, checkpoint=tmp_path / "run" / "checkpoint-6")
    assert resumed.state.update == 8 and same_parameters(resumed.task.model, whole.task.model)


def test_a_best_checkpoint_that_is_damaged_is_not_loaded(masked, build, tmp_path):
    path = tmp_path / "run" / "checkpoint-1" / "model.safetensors"

    def damage() -> None:
        if path.exists():
            path.write_bytes(path.read_bytes()[:-1])

    fields = {"metric": "loss", "evaluate_every": 1, "save_every": 1, "updates": 2}
    training = after_updates(build(task=told(masked(), loss=[1.0, 2.0]), **fields), damage)
    message = f"{tmp_path / 'run'}: expected its best checkpoint, got {path}: expected"
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        training.loop()


# Updates that are not finite, folders that stay, signals --------------------------------------------------------------


def test_an_update_that_is_not_finite_is_not_made(masked, build):
    task = masked()
    forward = task.forward
    task.forward = lambda *batch: forward(*batch) * (math.nan if training.state.update == 2 else 1.0)
    training = build(task=task, save_every=99)
    message = (
        "update 3 (epoch 0.4): expected a finite loss and gradient, got a loss of nan in batch 1 of 1 of process 0; the "
        "update was not made. Lower learning_rate 0.01"
    )
    before: list[torch.Tensor] = []
    after_updates(training, lambda: before.__setitem__(slice(None), [p.clone() for p in training.task.parameters()]))
    with pytest.raises(DivergedError, match=f"^{re.escape(message)}$"):
        training.loop()
    assert training.state.update == 2
    assert all(map(torch.equal, training.task.parameters(), before))


def test_checkpoints_that_cannot_be_removed_do_not_end_a_training(run, monkeypatch, caplog):
    def fail(path):
        raise PermissionError(f"{path}: not yours")

    monkeypatch.setattr(folders, "remove_folder", fail)
    trained = run(save_every=2, save_total_limit=1)
    assert trained.state.update == 7 and "old checkpoints cannot be removed" in caplog.text


def test_a_signal_before_the_first_update_leaves_nothing(masked, build, tmp_path):
    task = masked()
    measure = task.measure
    task.measure = lambda batch: (signal.raise_signal(signal.SIGTERM), measure(batch))[1]
    with pytest.raises(Stopped, match=r"^stopped after update 0; there was nothing to save$"):
        build(task=task, evaluate_first=True).loop()
    assert not list(tmp_path.glob("run/checkpoint-*"))
