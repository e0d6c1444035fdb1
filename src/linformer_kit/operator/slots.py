"""Slots, and attention of queries over them: softmax(Q·(E·K)ᵀ/√d)·(F·V).

Axes, in the whole of `operator`:

    batch      sequences                      heads      h in the paper
    seq_len    n, tokens of the keys          projected  k, slots; `slots` where a short text makes fewer
    query_len  tokens of the queries          embed      d_m, width of the model
    head_dim   d, width of a head
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.operator import kernels
from linformer_kit.operator.neighbours import Blocks, Neighbours
from linformer_kit.operator.padding import of_samples


def split_heads(hidden: Float[Tensor, "batch seq_len embed"], num_heads: int) -> Float[Tensor, "batch heads seq_len d"]:
    """Split the width into heads and bring the heads before the sequence."""
    batch, seq_len, embed = hidden.shape
    return hidden.view(batch, seq_len, num_heads, embed // num_heads).transpose(1, 2)


def merge_heads(hidden: Float[Tensor, "batch heads seq_len d"]) -> Float[Tensor, "batch seq_len embed"]:
    """Concatenate the heads: the inverse of `split_heads`."""
    return hidden.transpose(1, 2).flatten(2)


class Slots(NamedTuple):
    """Projected keys and values of heads with the same number of slots."""

    key: Float[Tensor, "batch heads slots head_dim"]
    value: Float[Tensor, "batch heads slots head_dim"]
    empty: Bool[Tensor, "batch_or_1 slots"] | None  # True for a slot without any real token; None: no empty slots
    heads: list[int] | None  # None: all heads
    projected: bool = True  # False with full attention, where each token is its own slot
    neighbours: Neighbours | None = None  # tokens that queries see besides the slots, with a sliding window
    # Sizes of the first slots, which stand for consecutive tokens from the start of the text; None: no slot does so.
    sizes: Int[Tensor, "batch_or_1 first_slots"] | None = None

    @property
    def mask(self) -> Bool[Tensor, "batch_or_1 1 1 slots"] | None:
        """True for slots that a query may attend to; None: all."""
        return None if self.empty is None else ~_some_key(self.empty)[:, None, None, :]

    def with_neighbours(self, neighbours: Neighbours) -> Slots:
        """Let queries see tokens besides the slots; slots of `sizes` then count for the rest of their tokens only."""
        near = neighbours.of_heads(self.heads)
        if self.sizes is not None:
            near = near._replace(edges=F.pad(self.sizes.cumsum(-1), (1, 0)) - near.offset)
        return self._replace(neighbours=near)

    def after_tokens(self, key: Tensor, value: Tensor, lengths: Tensor | None) -> Slots:
        """Put slots before these that are single tokens, of which the first `lengths` are real (None: all)."""
        heads = slice(None) if self.heads is None else self.heads
        tokens, device = key.shape[2], key.device
        real = torch.arange(tokens, device=device) < (tokens if lengths is None else lengths[:, None])
        real = real.view(-1, tokens)
        empty = self.empty
        if lengths is not None:  # without tokens after the first ones, their slots stand for nothing
            none = (lengths <= tokens)[:, None].expand(-1, self.key.shape[2])
            empty = torch.cat([~real, none if empty is None else none | empty], dim=1)
        elif empty is not None:
            empty = torch.cat([~real.expand(empty.shape[0], -1), empty], dim=1)
        sizes = real.long()
        if self.sizes is not None:
            batch = self.sizes.shape[0] if lengths is None else lengths.shape[0]
            sizes = torch.cat([sizes.expand(batch, -1), self.sizes.expand(batch, -1)], dim=1)
        return self._replace(
            key=torch.cat([key[:, heads], self.key], dim=2),
            value=torch.cat([value[:, heads], self.value], dim=2),
            empty=empty,
            sizes=sizes,
        )

    def arranged(self) -> Slots:
        """The same slots, with the memory layout for queries that run block by block."""
        key, value = kernels.arranged(self.key, self.value) if self.projected else (self.key, self.value)
        return self._replace(key=key, value=value)

    def of_block(self, samples: slice, rows: slice) -> Slots:
        """The slots for some queries of some of the sequences."""
        near = None if self.neighbours is None else self.neighbours.of_block(samples, rows)
        return self._replace(
            key=self.key[samples],
            value=self.value[samples],
            empty=of_samples(self.empty, samples),
            neighbours=near,
        )


def attend_slots(
    query: Float[Tensor, "batch heads query_len head_dim"],
    groups: list[Slots],
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len slots"] | None]:
    """Attention of each group of heads over its slots, with heads in their original order, and P̄ if requested.

    P̄ has no dropout applied; the output is computed from the returned tensor, so P̄ can receive gradients. With a
    sliding window it has w more columns, for the neighbours of each query from the first to the last, and its rows are
    in the original order, while queries and output have real tokens first.
    """
    queries = [query if group.heads is None else query[:, group.heads] for group in groups]
    order = None if len(groups) == 1 else _order_of_heads(groups, query.shape[1])
    weights = None
    if need_weights:
        most = groups[0].key.shape[2]
        blocks = [_blocks(part, group) for part, group in zip(queries, groups, strict=True)]
        weights = _joined([_mapping(*each, most) for each in zip(queries, groups, blocks, strict=True)], order)
        near = groups[0].neighbours
        if near is not None:
            weights = near.put_heads_back(weights)
        dropped = F.dropout(weights if near is None else near.ordered_heads(weights), dropout)
        by_group = [dropped if group.heads is None else dropped[:, group.heads] for group in groups]
        parts = [_product(*each, most) for each in zip(by_group, groups, blocks, strict=True)]
    else:
        parts = [_attend(part, group, dropout) for part, group in zip(queries, groups, strict=True)]
    return _joined(parts, order), weights


def _joined(parts: list[Tensor], order: list[int] | None) -> Tensor:
    """The heads of all groups in their original order."""
    return parts[0] if order is None else torch.cat(parts, dim=1)[:, order]


def _order_of_heads(groups: list[Slots], num_heads: int) -> list[int]:
    """The position of each head in the concatenated groups."""
    grouped = [head for group in groups for head in group.heads or ()]
    return [grouped.index(head) for head in range(num_heads)]


def _attend(query: Tensor, group: Slots, dropout: float) -> Tensor:
    """Attention over slots, and over neighbours if there are any."""
    if group.neighbours is not None:
        return kernels.attention_with_neighbours(
            query, group.key, group.value, group.mask, group.neighbours, dropout=dropout
        )
    # With gradients, the kernel for slots is used for full attention too: flash attention's backward pass is slower on
    # CPUs (docs/speed.md).
    few = group.projected or torch.is_grad_enabled()
    return kernels.attention(query, group.key, group.value, group.mask, dropout=dropout, few_keys=few)


def _blocks(query: Tensor, group: Slots) -> Blocks | None:
    return None if group.neighbours is None else Blocks.of(query, group.neighbours)


def _mapping(query: Tensor, group: Slots, blocks: Blocks | None, most: int) -> Tensor:
    """P̄ of a group: its slots, filled up with zeros to `most`, and the neighbours of each query."""
    if blocks is None:
        mapping = context_mapping(query, group.key, group.empty)
        return F.pad(mapping, (0, most - group.key.shape[2]))
    of_slots, of_seen = blocks.weights(group.key, group.mask)
    of_slots = F.pad(of_slots, (0, most - of_slots.shape[-1]))
    return blocks.joined(torch.cat([of_slots, blocks.by_neighbour(of_seen)], dim=-1))


def _product(weights: Tensor, group: Slots, blocks: Blocks | None, most: int) -> Tensor:
    """The product of P̄ of a group, as `_mapping` returns it, with the values."""
    of_slots = weights[..., : group.key.shape[2]]
    if blocks is None:
        return of_slots @ group.value
    return blocks.product(blocks.cut(of_slots), blocks.by_token(blocks.cut(weights[..., most:])), group.value)


def context_mapping(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch_or_1 keys"] | None = None,
) -> Float[Tensor, "batch heads query_len keys"]:
    """The context mapping P of equation 2, or P̄ of equation 7 if the keys are slots: softmax(Q·Kᵀ/√d).

    `key_padding_mask` is True where a key is padding; if all keys are, the mask is ignored, so rows stay finite.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(_some_key(key_padding_mask)[:, None, None, :], -math.inf)
    return scores.softmax(dim=-1)


def _some_key(hidden: Bool[Tensor, "*batch keys"]) -> Bool[Tensor, "*batch keys"]:
    """The mask, True for hidden keys, cleared where it would hide all of them."""
    return hidden & ~hidden.all(dim=-1, keepdim=True)
