"""Everything runs offline; models are tiny; sizes are distinct primes, so that a swapped axis cannot pass."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch

from linformer_kit import LinformerConfig
from linformer_kit.projection import PROJECTIONS

torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other

SHARINGS = ("none", "headwise", "key_value", "layerwise")
# Models that differ in more than sharing or projection.
OTHERS = {
    "full": {"attention": "full"},
    "norm_first": {"norm_first": True},
    "local": {"local_convolution": 5},
    "local_norm_first": {"local_convolution": 3, "norm_first": True, "sharing": "layerwise"},
    "local_full": {"local_convolution": 3, "attention": "full"},
}
KINDS = (*SHARINGS, *(name for name in PROJECTIONS if name != "linear"), *OTHERS)
SIZES = {
    "vocab_size": 101,
    "max_position_embeddings": 37,
    "projected_dim": 7,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
}


# Of models that are pretrained in tests, with a tokenizer of their own.
PRETRAIN_SIZES = {**SIZES, "vocab_size": 277, "max_position_embeddings": 23}


def write_corpus(folder: Path) -> Path:
    """A few documents that are alike, enough to pretrain on."""
    for number in range(13):
        lines = [f"def function_{number}_{line}(first, second): return first + second" for line in range(17)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def config():
    """A factory of small configurations without dropout."""

    def build(**fields: object) -> LinformerConfig:
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return LinformerConfig(**{**SIZES, **quiet, **fields})

    return build


def tokens(batch: int, seq_len: int) -> torch.Tensor:
    """Random ordinary tokens of the small vocabulary."""
    return torch.randint(5, SIZES["vocab_size"], (batch, seq_len))


def randomise(module: torch.nn.Module, scale: float = 0.3) -> torch.nn.Module:
    """Random parameters everywhere: zero biases and pooling starts would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=scale)
    return module


def fields(kind: str) -> dict[str, object]:
    """A sharing of the linear projection, another projection, or another model."""
    if kind in OTHERS:
        return OTHERS[kind]
    return {"sharing": kind} if kind in SHARINGS else {"projection": kind, "sharing": "none"}
