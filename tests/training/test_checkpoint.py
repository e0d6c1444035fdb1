"""Checkpoints: loading restores what was saved, and files of another model are rejected."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from linformer_cli.errors import MachineError
from linformer_kit import InputError, LinformerForMaskedLM
from linformer_kit.files.manifest import damage, write_manifest
from linformer_kit.training.checkpoint import OPTIMIZER, load_moments, load_weights, save_checkpoint, save_model
from linformer_kit.training.optimizer import adamw
from linformer_kit.training.state import Position, TrainingState
from tests.conftest import randomise, tokens
from tests.training.conftest import same_parameters, small_settings


def learn(model: LinformerForMaskedLM, optimizer: torch.optim.Optimizer, times: int) -> None:
    for time in range(times):
        torch.manual_seed(time)
        ids = tokens(3, 37)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def trained(config):
    """A model after a few updates, and its optimizer."""
    torch.manual_seed(0)
    model = LinformerForMaskedLM(config())
    optimizer = adamw(model, small_settings(projection_learning_rate_factor=0.5))
    learn(model, optimizer, 3)
    return model, optimizer


@pytest.fixture
def checkpoint(trained, words, tmp_path) -> Path:
    state = TrainingState(3, Position(0, 3), 0.6, [1.5], [{"step": 3, "epoch": 0.6, "loss": 2.0}])
    save_checkpoint(tmp_path / "checkpoint-3", trained[0], words, trained[1], state)
    return tmp_path / "checkpoint-3"


def test_training_goes_on_as_it_would_have(checkpoint, trained, config):
    """Bit for bit, with another order of the groups and learning rates that are the optimizer's own."""
    model, optimizer = trained
    again = randomise(LinformerForMaskedLM(config()))
    settings = small_settings(projection_learning_rate_factor=0.5)
    other = adamw(again, settings)
    learn(again, other, 1)
    load_weights(again, checkpoint)
    assert same_parameters(again, model)
    load_moments(again, other, checkpoint)
    learn(model, optimizer, 2), learn(again, other, 2)
    assert same_parameters(again, model)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


# Files that do not fit -----------------------------------------------------------------------------------------------


def rewrite(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    write_manifest(path.parent)


DENSE = "lm_head.dense.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (OPTIMIZER, lambda t: t.pop(f"{DENSE}.exp_avg"), f"expected [33, 33] as {DENSE}.exp_avg, got none"),
        (OPTIMIZER, lambda t: t.update({f"{DENSE}.exp_avg": torch.ones(33, 33, dtype=torch.int64)}), f"expected [33, 33] as {DENSE}.exp_avg, got [33, 33] of torch.int64"),
        (OPTIMIZER, lambda t: t.update({"other.exp_avg": torch.ones(3)}), "expected moments of this model's parameters, got other.exp_avg"),
        ("", lambda t: t.pop(DENSE), f"expected the weights of this model, got none for {DENSE}"),
        ("", lambda t: t.update({"other.weight": torch.ones(3)}), "expected the weights of this model, got no place for other.weight"),
        ("", lambda t: t.update({DENSE: torch.ones(3, 33)}), f"expected [33, 33] as {DENSE}, got [3, 33]"),
    ],
)  # fmt: skip
def test_tensors_of_another_model_are_rejected(checkpoint, trained, name, change, message):
    rewrite(checkpoint / (name or "model.safetensors"), change)
    with pytest.raises(InputError, match=f"^{re.escape(f'{checkpoint / name}: {message}')}$"):
        load_moments(*trained, checkpoint) if name else load_weights(trained[0], checkpoint)


def test_files_beside_those_of_the_manifest_are_not_read(checkpoint, trained, config):
    save_file({"other.weight": torch.ones(3)}, checkpoint / "model-00002-of-00002.safetensors")
    again = randomise(LinformerForMaskedLM(config()))
    load_weights(again, checkpoint)
    assert same_parameters(again, trained[0])


# Failures ------------------------------------------------------------------------------------------------------------

FAILURES = [
    (OSError(errno.ENOSPC, "No space left on device"), MachineError, "No space left on device"),
    (ValueError("odd"), InputError, "odd"),
]


@pytest.mark.parametrize(("error", "kind", "got"), FAILURES)
def test_of_a_checkpoint_that_cannot_be_written_nothing_is_left(error, kind, got, checkpoint, trained, monkeypatch):
    """What stood there is as it was."""
    before = {path: path.read_bytes() for path in checkpoint.iterdir()}
    tokenizer = Mock(is_fast=False)
    tokenizer.save_pretrained.side_effect = error
    kept = "nothing incomplete is left of it, and older checkpoints are as they were"
    message = f"{checkpoint}: could not be written: {got}; {kept}"
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        save_checkpoint(checkpoint, trained[0], tokenizer, trained[1], TrainingState(5))
    assert {path: path.read_bytes() for path in checkpoint.iterdir()} == before
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint-3"]


def test_a_readme_of_the_user_stays_beside_a_model(trained, words, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    save_model(trained[0], words, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine" and damage(tmp_path) is None
    (tmp_path / "README.md").unlink()
    for _ in range(2):
        save_model(trained[0], words, tmp_path)
        assert "LinformerForMaskedLM" in (tmp_path / "README.md").read_text() and damage(tmp_path) is None
