"""A model of which each of several processes computes a piece of the text, in float64, with random parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import linformer_kit as lk
from tests.conftest import SIZES, randomise
from tests.processes import run_processes

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def run(ranks: int, function: Callable[..., None], folder, *arguments: Any) -> None:
    """Run a function in several processes; an error in one of them fails the test."""
    store = f"file://{folder}/store"
    run_processes(ranks, _start, ranks, store, function, arguments)


def _start(rank: int, ranks: int, store: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.Tensor.float = torch.Tensor.double  # the heads round logits to float32 before the loss
    dist.init_process_group("gloo", store, rank=rank, world_size=ranks)
    try:
        function(*arguments)
    finally:
        dist.destroy_process_group()


def build(head: type = lk.LinformerForMaskedLM, **fields: Any) -> torch.nn.Module:
    """A model that differs from process to process; the first process's is used."""
    torch.manual_seed(dist.get_rank())
    model = head(lk.LinformerConfig(**{**SIZES, **QUIET, **fields}))
    for module in model.modules():
        if isinstance(module, lk.RandomProjection):
            module.reset_parameters()
    return randomise(model).double().train()


def split(model: torch.nn.Module) -> lk.SequenceParallel:
    return lk.SequenceParallel(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def make_batch(seq_len: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """No padding; padding on the right, on the left, in holes; one token; none at all."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, SIZES["vocab_size"], (6, seq_len), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, (seq_len + 1) // 2 :] = 0
    mask[2, : seq_len // 2] = 0
    mask[3] = torch.rand(seq_len, generator=generator) < 0.6
    mask[4, 1:] = 0
    mask[5] = 0
    wanted = (torch.rand(ids.shape, generator=generator) < 0.5) & (mask == 1)
    wanted[0, 0] = True
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~wanted, -100)}
