"""Sharded models: the same numbers as whole ones. The processes are real ones, on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from linformer_kit import InputError, LinformerConfig, LinformerForMaskedLM
from linformer_kit.training.optimizer import shard
from tests.conftest import SIZES, randomise
from tests.processes import run_processes

pytestmark = pytest.mark.e2e

BATCH = 6  # that 1 and 2 processes share equally
STEPS = 3
LONG = 1201  # more than a block of tokens, so that inference runs in blocks


def build() -> LinformerForMaskedLM:
    """The same model in every process, in float64 and without dropout."""
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return randomise(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **quiet, "sharing": "layerwise"})).double())


def batch(rank: int, processes: int) -> dict[str, Tensor]:
    """A process's share of one batch, with padding; its loss counts so that the mean over processes is the batch's."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, SIZES["vocab_size"], (BATCH, 31), generator=draw)
    mask = torch.ones_like(ids)
    mask[:2, 19:] = 0
    labels = ids.masked_fill((torch.rand(ids.shape, generator=draw) > 0.4) | (mask == 0), -100)
    count = (labels != -100).sum().double() / processes
    mine = slice(rank, None, processes)
    inputs = {"input_ids": ids[mine], "attention_mask": mask[mine], "labels": labels[mine]}
    return inputs | {"num_items_in_batch": count}


def loss_of(model: torch.nn.Module, rank: int, processes: int) -> Tensor:
    """The model's own loss, which it takes in float32, in float64."""
    inputs = batch(rank, processes)
    labels, count = inputs.pop("labels"), inputs.pop("num_items_in_batch")
    logits = model(**inputs).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def gradients(model: torch.nn.Module, rank: int, processes: int) -> dict[str, Tensor]:
    """The loss, over all processes, and what it leaves in the model."""
    loss = loss_of(model, rank, processes)
    loss.backward()
    loss = loss.detach() / processes
    if processes > 1:
        dist.all_reduce(loss)
    return {"loss": loss, **{f"grad.{name}": full(p.grad) for name, p in model.named_parameters()}}


def everything(model: torch.nn.Module, rank: int, processes: int) -> dict[str, Tensor]:
    """Loss, gradients, parameters after a few updates of AdamW, logits."""
    tensors = gradients(model, rank, processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, processes).backward()
        optimizer.step()
    tensors |= {name: full(parameter) for name, parameter in model.named_parameters()}
    return tensors | {"logits": logits_of_long_text(model)}


def logits_of_long_text(model: torch.nn.Module) -> Tensor:
    """Inference over several blocks of tokens."""
    ids = torch.randint(5, SIZES["vocab_size"], (1 + LONG // 31, 31), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.eval()(ids).logits


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    if dist.get_rank() == 0:
        save_file(tensors, path)


def one_of_two(rank: int, folder: Path) -> None:
    """A sharded model in float64."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    model = build()
    shard(model, init_device_mesh("cpu", (2,)))
    kept = sum(parameter.to_local().untyped_storage().nbytes() for parameter in model.parameters())
    all_ = sum(parameter.numel() * 8 for parameter in build().parameters())
    assert 0.5 * all_ <= kept <= 0.52 * all_  # an odd number of rows does not halve
    write(folder / "float64", everything(model, rank, 2))
    dist.destroy_process_group()


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_a_sharded_model_computes_and_learns_what_a_whole_one_does(tmp_path):
    run_processes(2, one_of_two, tmp_path)
    expected = everything(build(), 0, 1)
    assert_close(load_file(tmp_path / "float64"), expected)


def test_a_model_without_layers_of_transformers_is_rejected():
    with pytest.raises(InputError, match=r"^fully_shard: expected a model with layers of transformers, got Linear$"):
        shard(torch.nn.Linear(2, 2), mesh=None)
