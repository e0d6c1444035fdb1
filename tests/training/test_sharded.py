"""Sharded models: the same numbers as whole ones. The processes are real ones, on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from linformer_kit import InputError, LinformerConfig, LinformerForMaskedLM
from linformer_kit.training.optimizer import shard
from tests.conftest import SIZES, randomise
from tests.processes import run_processes

pytestmark = pytest.mark.e2e

LONG = 1201  # more than a block of tokens, so that inference runs in blocks


def build() -> LinformerForMaskedLM:
    """The same model in every process, in float64 and without dropout."""
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return randomise(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **quiet, "sharing": "layerwise"})).double())


def logits_of_long_text(model: torch.nn.Module) -> Tensor:
    """Inference over several blocks of tokens."""
    ids = torch.randint(5, SIZES["vocab_size"], (1 + LONG // 31, 31), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.eval()(ids).logits


def one_of_two(rank: int, folder: Path) -> None:
    """A sharded model in float64."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    model = build()
    shard(model, init_device_mesh("cpu", (2,)))
    kept = sum(parameter.to_local().untyped_storage().nbytes() for parameter in model.parameters())
    all_ = sum(parameter.numel() * 8 for parameter in build().parameters())
    assert 0.5 * all_ <= kept <= 0.52 * all_  # an odd number of rows does not halve
    logits = logits_of_long_text(model)
    if rank == 0:
        save_file({"logits": logits}, folder / "logits")
    dist.destroy_process_group()


def test_a_sharded_model_keeps_half_in_each_process_and_computes_what_a_whole_one_does(tmp_path):
    """That it learns the same is tested by commands."""
    run_processes(2, one_of_two, tmp_path)
    found = load_file(tmp_path / "logits")["logits"]
    torch.testing.assert_close(found, logits_of_long_text(build()), rtol=1e-10, atol=1e-10)


def test_a_model_without_layers_of_transformers_is_rejected():
    with pytest.raises(InputError, match=r"^fully_shard: expected a model with layers of transformers, got Linear$"):
        shard(torch.nn.Linear(2, 2), mesh=None)
