"""A non-finite loss or gradient never reaches the parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("loss", "said"),
    [(lambda loss: loss * math.inf, "got a loss of inf in batch 2 of 2"), (no_gradient, "got a gradient norm of nan")],
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


def test_skipping_resumes_exactly(corpus, tmp_path, spoil):
    command = pretrain_command(corpus, tmp_path / "whole", max_skipped_updates=1)
    spoil({3}, lambda loss: loss * math.nan)
    run_all([command])
    copy = cut_off(tmp_path / "whole", tmp_path / "copy", 4)
    spoil(set(), lambda loss: loss)
    run_all([[*pretrain_command(corpus, copy, max_skipped_updates=1), "--resume"]])
    results = json.loads((copy / "metrics.json").read_text())["models"]["linformer"]
    assert results["skipped_updates"] == 1 and results["updates"] == 12
    assert_equal(copy / "checkpoint-12", tmp_path / "whole" / "checkpoint-12")
