"""The longest input of an encoder, ours or one of transformers: its tables of positions, and resizing them."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from linformer_cli.errors import InputError
from linformer_kit.operator.checks import LONGEST
from linformer_kit.operator.projections import check_resize
from linformer_kit.operator.projections.resampling import resize_positions


class Table(NamedTuple):
    """A table of position embeddings: its owner, the embedding, and the number of unused first rows (as in RoBERTa)."""

    owner: nn.Module
    embedding: nn.Embedding
    unused: int

    @property
    def positions(self) -> int:
        return self.embedding.num_embeddings - self.unused


def position_tables(model: nn.Module) -> list[Table]:
    """All tables of token positions in a model."""
    tables = []
    for owner in model.modules():
        embedding = getattr(owner, "position_embeddings", None)
        if isinstance(embedding, nn.Embedding):
            padding, offset = embedding.padding_idx, getattr(owner, "position_offset", _first(owner, embedding))
            tables.append(Table(owner, embedding, offset if padding is None else padding + 1))
    return tables


def _first(owner: nn.Module, embedding: nn.Embedding) -> int:
    """The first number in `position_ids`, by its length, so that it is known on the meta device too."""
    numbers = getattr(owner, "position_ids", None)
    return 0 if numbers is None else embedding.num_embeddings - numbers.shape[-1]


def longest_input(model: PreTrainedModel) -> int | None:
    """n in tokens: the size of the tables, else the configuration's value; None if there is no limit."""
    tables = [table.positions for table in position_tables(model)]
    return min(tables, default=getattr(model.config, "max_position_embeddings", None))


def check_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Check that `set_positions` can resize a model."""
    now, kind = longest_input(model), type(model).__name__
    if now is None:
        raise InputError(f"seq_len: expected none for {kind}, whose inputs have a fixed size, got {seq_len}")
    check_resize(now, seq_len, mode)
    if seq_len > LONGEST:
        raise InputError(f"seq_len: expected at most {LONGEST:,}, got {seq_len:,}")
    if not position_tables(model) and not any("Rotary" in type(module).__name__ for module in model.modules()):
        expected = f"none, since {kind} has no plain table of positions (merge adapters first)"
        raise InputError(f"seq_len: expected {expected}, got {seq_len}")


@torch.no_grad()
def set_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Resize the tables (`position_embeddings`) and the configuration of a model to seq_len tokens, in-place."""
    more = seq_len - cast(int, longest_input(model))
    for owner, old, unused in position_tables(model):
        for name in ("position_ids", "token_type_ids"):  # buffers of the same length as the table
            if name in owner._buffers:
                buffer = getattr(owner, name)
                numbers = torch.arange(buffer.shape[-1] + more).to(buffer)[None]
                setattr(owner, name, numbers + _first(owner, old) if name == "position_ids" else 0 * numbers)
        positions = resize_positions(old.weight[unused:], seq_len, mode)
        table = torch.cat([old.weight[:unused], positions])
        trains = old.weight.requires_grad
        owner.position_embeddings = nn.Embedding.from_pretrained(table, freeze=not trains, padding_idx=old.padding_idx)
    model.config.max_position_embeddings += more
