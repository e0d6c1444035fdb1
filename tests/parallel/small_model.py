"""A small model that trains the same in any number of processes."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from linformer_kit import LinformerConfig, LinformerForMaskedLM
from tests.conftest import SIZES, fields, randomise

BATCH = 6  # that 1, 2 and 3 processes share equally


def build(kind: str = "layerwise", **others: object) -> LinformerForMaskedLM:
    """The same model in every process, in float64 and without dropout."""
    torch.manual_seed(0)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = LinformerConfig(**{**SIZES, **quiet, **fields(kind), **others})
    return randomise(LinformerForMaskedLM(config).double())


def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Two groups, as with decay and without."""
    groups = ([p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() < 2])
    decays = (0.1, 0.0)
    parts = [{"params": group, "weight_decay": decay} for group, decay in zip(groups, decays, strict=True)]
    return torch.optim.AdamW(parts, lr=1e-2, betas=(0.8, 0.95))


def batch(rank: int, processes: int) -> dict[str, Tensor]:
    """A process's share of one batch, with padding; its loss counts so that the mean over processes is the batch's."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, SIZES["vocab_size"], (BATCH, 31), generator=draw)
    mask = torch.ones_like(ids)
    mask[:2, 19:] = 0
    labels = ids.masked_fill((torch.rand(ids.shape, generator=draw) > 0.4) | (mask == 0), -100)
    count = (labels != -100).sum().double() / processes
    mine = slice(rank, None, processes)
    return {
        "input_ids": ids[mine],
        "attention_mask": mask[mine],
        "labels": labels[mine],
        "num_items_in_batch": count,
    }


def loss_of(model: torch.nn.Module, rank: int, processes: int) -> Tensor:
    """The model's own loss, which it takes in float32, in float64."""
    inputs = batch(rank, processes)
    labels, count = inputs.pop("labels"), inputs.pop("num_items_in_batch")
    logits = model(**inputs).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, processes: int, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, processes).backward()
        optimizer.step()


def everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors that training has changed, unsharded."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = full(parameter)
        found |= {f"{name}.{field}": full(value) for field, value in optimizer.state[parameter].items()}
    return found


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
