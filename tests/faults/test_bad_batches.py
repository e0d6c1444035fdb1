"""A non-finite loss or gradient never reaches the parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from linformer_kit import LinformerForMaskedLM
from linformer_kit.files.runs import find_checkpoint
from tests.conftest import fail_last_line
from tests.faults.runs import assert_equal, cut_off, pretrain_command, run_all

pytestmark = pytest.mark.e2e

FORWARD = LinformerForMaskedLM.forward


@pytest.fixture
def spoil(monkeypatch):
    """Change the loss of the given forward passes of training."""

    def change(passes: set[int], loss: Callable[[Tensor], Tensor]) -> None:
        count = 0

        def forward(self, *inputs, **named):
            nonlocal count
            output = FORWARD(self, *inputs, **named)
            if self.training:
                count += 1
                if count in passes:
                    output.loss = loss(output.loss)
            return output

        monkeypatch.setattr(LinformerForMaskedLM, "forward", forward)

    return change


def no_gradient(loss: Tensor) -> Tensor:
    """A finite loss with a non-finite gradient: 0 · ∞ in the backward pass."""
    return loss + (loss * 0).sqrt()


def log(checkpoint: Path) -> list[dict]:
    return json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda loss: loss * math.nan, "got a loss of nan in batch 2 of 2"),
        (lambda loss: loss * math.inf, "got a loss of inf in batch 2 of 2"),
        (no_gradient, "got a gradient norm of nan"),
    ],
)
def test_it_ends_before_the_update(corpus, tmp_path, capsys, spoil, loss, said):
    """The second of two batches of the third update; loss and gradient at infinity and beyond."""
    spoil({6}, loss)
    folder = tmp_path / "out"
    command = pretrain_command(corpus, folder, gradient_accumulation_steps=2)
    error = fail_last_line(capsys, *command)
    assert "linformer attention: update 3 (epoch " in error and said in error and "the update was not made" in error
    newest, wrong = find_checkpoint(folder)
    assert newest == folder / "checkpoint-2" and not wrong
    for name in ("model", "optimizer"):
        assert all(
            torch.isfinite(tensor.float()).all() for tensor in load_file(newest / f"{name}.safetensors").values()
        )
    assert not (folder / "model.safetensors").exists()


def test_a_few_may_be_left_out_and_are_counted(corpus, tmp_path, capsys, spoil, monkeypatch):
    """They change neither parameters nor the optimizer, and the mean in the log is over the others."""
    spoil({3, 4}, lambda loss: loss * math.nan)
    folder = tmp_path / "out"
    command = pretrain_command(corpus, folder, max_skipped_updates=2, logging_steps=1)
    run_all([command])
    two, four = (load_file(folder / f"checkpoint-{update}" / "model.safetensors") for update in (2, 4))
    assert all(torch.equal(tensor, four[name]) for name, tensor in two.items())
    history = log(folder / "checkpoint-12")
    assert [entry["skipped_updates"] for entry in history if "skipped_updates" in entry] == [1, 2]
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    assert all(math.isfinite(loss) and loss > 1 for loss in losses.values()) and not {3, 4} & set(losses)
    results = json.loads((folder / "metrics.json").read_text())["models"]["linformer"]
    assert results["skipped_updates"] == 2 and results["updates"] == 12
    # One more than that ends it, and those before an interruption count.
    monkeypatch.undo()
    resumed = cut_off(folder, tmp_path / "resumed", 6)
    spoil({1}, lambda loss: loss * math.nan)
    command = pretrain_command(corpus, resumed, max_skipped_updates=2, logging_steps=1)
    assert "update 7 (epoch" in fail_last_line(capsys, *command, "--resume")


def test_the_mean_in_the_log_is_over_the_updates_that_were_made(corpus, tmp_path, spoil):
    """A skipped update in the middle of an interval, of which one of two batches was good."""
    options = {"max_steps": 4, "gradient_accumulation_steps": 2, "eval_steps": 9}
    every = pretrain_command(corpus, tmp_path / "every", max_skipped_updates=1, logging_steps=1, **options)
    fourth = pretrain_command(corpus, tmp_path / "fourth", max_skipped_updates=1, logging_steps=4, **options)
    for command in (every, fourth):
        spoil({4}, lambda loss: loss * math.nan)
        run_all([command])
    losses = [entry["loss"] for entry in log(tmp_path / "every" / "checkpoint-4") if "loss" in entry]
    (mean,) = (entry["loss"] for entry in log(tmp_path / "fourth" / "checkpoint-4") if "loss" in entry)
    assert len(losses) == 3 and mean == pytest.approx(sum(losses) / 3, rel=1e-6)


def test_an_update_without_a_masked_token_is_no_bad_one(corpus, tmp_path):
    """Its loss is 0, and so is its gradient."""
    run_all(
        [
            pretrain_command(
                corpus,
                tmp_path / "out",
                mlm_probability=0.05,
                per_device_train_batch_size=1,
                max_steps=30,
                save_steps=30,
            )
        ]
    )
    losses = [entry["loss"] for entry in log(tmp_path / "out" / "checkpoint-30") if "loss" in entry]
    assert losses and all(map(math.isfinite, losses))


def test_skipping_resumes_exactly(corpus, tmp_path, spoil):
    command = pretrain_command(corpus, tmp_path / "whole", max_skipped_updates=1)
    spoil({3}, lambda loss: loss * math.nan)
    run_all([command])
    copy = cut_off(tmp_path / "whole", tmp_path / "copy", 4)
    spoil(set(), lambda loss: loss)
    run_all([[*pretrain_command(corpus, copy, max_skipped_updates=1), "--resume"]])
    assert_equal(copy / "checkpoint-12", tmp_path / "whole" / "checkpoint-12")
