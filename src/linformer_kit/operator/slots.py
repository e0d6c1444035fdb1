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
from jaxtyping import Bool, Float
from torch import Tensor

from linformer_kit.operator import kernels


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

    def arranged(self) -> Slots:
        """The same slots, with the memory layout for queries that run block by block."""
        key, value = kernels.arranged(self.key, self.value) if self.projected else (self.key, self.value)
        return self._replace(key=key, value=value)

    def of_samples(self, samples: slice) -> Slots:
        """The slots of some of the sequences."""
        empty = self.empty if self.empty is None or self.empty.shape[0] == 1 else self.empty[samples]
        return self._replace(key=self.key[samples], value=self.value[samples], empty=empty)


def attend_slots(
    query: Float[Tensor, "batch heads query_len head_dim"],
    groups: list[Slots],
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len slots"] | None]:
    """Attention of each group of heads over its slots, with heads in their original order, and P̄ if requested.

    P̄ has no dropout applied; the output is computed from the returned tensor, so P̄ can receive gradients.
    """
    if need_weights and len(groups) > 1:
        return _attend_with_weights(query, groups, dropout)
    parts = [
        scaled_dot_product_attention(
            query if group.heads is None else query[:, group.heads],
            group.key,
            group.value,
            group.empty,
            dropout=dropout,
            need_weights=need_weights,
            slots=group.projected,
        )
        for group in groups
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part for part, _ in parts], dim=1)[:, _order_of_heads(groups, query.shape[1])], None


def _attend_with_weights(query: Tensor, groups: list[Slots], dropout: float) -> tuple[Tensor, Tensor]:
    """As `attend_slots`, for heads with different numbers of slots: one P̄, padded with zeros, and its products."""
    most = groups[0].key.shape[2]
    mappings = [context_mapping(query[:, group.heads], group.key, group.empty) for group in groups]
    padded = [F.pad(mapping, (0, most - mapping.shape[-1])) for mapping in mappings]
    order = _order_of_heads(groups, query.shape[1])
    weights = torch.cat(padded, dim=1)[:, order]
    dropped = F.dropout(weights, dropout)
    parts = [dropped[:, group.heads, :, : group.key.shape[2]] @ group.value for group in groups]
    return torch.cat(parts, dim=1)[:, order], weights


def _order_of_heads(groups: list[Slots], num_heads: int) -> list[int]:
    """The position of each head in the concatenated groups."""
    grouped = [head for group in groups for head in group.heads or ()]
    return [grouped.index(head) for head in range(num_heads)]


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


def _some_key(padding_mask: Bool[Tensor, "batch keys"]) -> Bool[Tensor, "batch keys"]:
    """The mask, cleared for sequences in which it would hide all keys."""
    return padding_mask & ~padding_mask.all(dim=1, keepdim=True)


def scaled_dot_product_attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch_or_1 keys"] | None = None,
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
    slots: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len keys"] | None]:
    """Attention of queries over keys (equation 2) or, with `slots`, over slots (equation 7); weights if requested.

    Without `need_weights` this package never materialises the query_len × keys matrix. With gradients, the kernel for
    slots is used for full attention too: flash attention's backward pass is slower on CPUs (docs/speed.md).
    """
    if need_weights:
        weights = context_mapping(query, key, key_padding_mask)
        return F.dropout(weights, dropout) @ value, weights
    mask = None
    if key_padding_mask is not None:
        mask = ~_some_key(key_padding_mask)[:, None, None, :]
    if slots or torch.is_grad_enabled():
        return kernels.attention(query, key, value, mask, dropout=dropout), None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None
