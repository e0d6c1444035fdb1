"""The longest input of an encoder, ours or one of transformers: its tables of positions, and resizing them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from linformer_cli.errors import InputError
from linformer_kit.operator.checks import LONGEST
from linformer_kit.operator.projections import check_resize, is_integer
from linformer_kit.operator.projections.resampling import resize_positions

_TABLE = "position_embeddings"
_OF_POSITIONS = ("position_ids", "token_type_ids")  # buffers of the same length as the table


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
        embedding = getattr(owner, _TABLE, None)
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


def check_plain_table(model: nn.Module) -> None:
    """Raise an error for a position table that an adapter wraps: its rows are hidden."""
    for owner in model.modules():
        table = getattr(owner, _TABLE, None)
        if isinstance(getattr(table, "base_layer", None), nn.Embedding):
            kind = type(table).__name__
            raise InputError(f"{_TABLE}: expected a plain nn.Embedding, got {kind}; merge adapters first")


def check_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Check that `set_positions` can resize a model."""
    check_plain_table(model)
    now, kind = longest_input(model), type(model).__name__
    if not is_integer(seq_len):
        raise InputError(f"seq_len: expected a number of tokens, got {seq_len!r}")
    if seq_len > LONGEST:
        raise InputError(f"seq_len: expected at most {LONGEST:,}, got {seq_len:,}")
    if now is None:
        raise InputError(f"seq_len: expected none for {kind}, whose inputs have a fixed size, got {seq_len}")
    if not position_tables(model) and not any("Rotary" in type(module).__name__ for module in model.modules()):
        raise InputError(f"seq_len: expected none for {kind}, whose positions are not supported, got {seq_len}")
    check_resize(now, seq_len, mode)


@torch.no_grad()
def set_positions(model: PreTrainedModel, seq_len: int, mode: str) -> None:
    """Resize the tables (`position_embeddings`) and the configuration of a model to seq_len tokens, in-place."""
    now = longest_input(model)
    assert now is not None
    for owner, old, unused in position_tables(model):
        first = _first(owner, old)
        positions = resize_positions(old.weight[unused:], seq_len, mode)
        embedding = nn.Embedding.from_pretrained(
            torch.cat([old.weight[:unused], positions]),
            freeze=not old.weight.requires_grad,
            padding_idx=old.padding_idx,
        )
        setattr(owner, _TABLE, embedding)
        for name in _OF_POSITIONS:
            if name in owner._buffers:
                _lengthen_buffer(owner, name, seq_len - now, first)
    model.config.max_position_embeddings += seq_len - now


def _lengthen_buffer(owner: nn.Module, name: str, more: int, first: int) -> None:
    old = getattr(owner, name)
    length = old.shape[-1] + more
    new = torch.arange(first, first + length) if name == "position_ids" else torch.zeros(length, dtype=torch.long)
    persistent = name not in owner._non_persistent_buffers_set
    owner.register_buffer(name, new.to(old).expand(1, -1), persistent=persistent)
