"""Slots, and attention of queries over them: softmax(Q·(E·K)ᵀ/√d)·(F·V).

Axes, in the whole of `operator`:

    batch      sequences                      heads      h in the paper
    seq_len    n, tokens of the keys          projected  k, slots; `slots` where a short text makes fewer
    query_len  tokens of the queries          embed      d_m, width of the model
    head_dim   d, width of a head
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.operator.kernels import Kernels, choose
from linformer_kit.operator.neighbours import Blocks, Neighbours
from linformer_kit.operator.padding import take_block
from linformer_kit.operator.window import not_later


def split_heads(hidden: Float[Tensor, "batch seq_len embed"], num_heads: int) -> Float[Tensor, "batch heads seq_len d"]:
    """Split the width into heads and bring the heads before the sequence."""
    batch, seq_len, embed = hidden.shape
    return hidden.view(batch, seq_len, num_heads, embed // num_heads).transpose(1, 2)


def merge_heads(hidden: Float[Tensor, "batch heads seq_len d"]) -> Float[Tensor, "batch seq_len embed"]:
    """Concatenate the heads: the inverse of `split_heads`."""
    return hidden.transpose(1, 2).flatten(2)


class ForwardPass(NamedTuple):
    """What all layers of a forward pass share: decided at its door, and handed down."""

    kernels: Kernels
    lengths: Int[Tensor, " batch"] | None = None  # number of real tokens of each sequence; None: all
    # Samples and rows of the blocks in which tokens are computed, where they are independent; none: all at once.
    blocks: Sequence[tuple[slice, slice]] = ()
    before: Int[Tensor, " batch"] | None = None  # number of tokens of each text before these (`steps`); None: none

    @classmethod
    def of(cls, tensor: Tensor, given: ForwardPass | None = None) -> ForwardPass:
        """The forward pass of a tensor: `given`, which was handed down, or a new one without padding.

        Code that is compiled on its own chooses its kernels.
        """
        if given is None:
            return cls(choose(tensor))
        return given._replace(kernels=choose(tensor)) if torch.compiler.is_compiling() else given


class Slots(NamedTuple):
    """Projected keys and values."""

    key: Float[Tensor, "batch heads slots head_dim"]
    value: Float[Tensor, "batch heads slots head_dim"]
    # False for a slot without any real token, or that a head does not have; None: no such slots.
    real: Bool[Tensor, "batch_or_1 heads_or_1 slots"] | None = None
    # Sizes of the first slots, which stand for consecutive tokens from the start of the text; None: no slot does so.
    sizes: Int[Tensor, "batch_or_1 heads_or_1 first_slots"] | None = None
    neighbours: Neighbours | None = None  # tokens that queries see besides the slots, with a sliding window
    is_causal: bool = False  # full attention in which queries, those of the last tokens, see no later ones

    @property
    def mask(self) -> Bool[Tensor, "batch_or_1 heads_or_1 1 slots"] | None:
        """True for slots that a query may attend to; None: all. Where none is real, all of them."""
        if self.real is None:
            return None
        return (self.real | ~self.real.any(dim=-1, keepdim=True))[:, :, None]

    @classmethod
    def for_heads(cls, compress: Callable[[int], Slots], dims: Sequence[int]) -> Slots:
        """The slots of heads with different k: each head has its own first slots, and the others are not real.

        Args:
            compress: Makes slots of all heads for a k, once for each k; of these each head uses those of its own k.
            dims: k of each head.
        """
        by_number = {k: compress(k) for k in {*dims}}
        parts = [by_number[k] for k in dims]
        missing = [max(part.key.shape[2] for part in parts) - part.key.shape[2] for part in parts]
        keys, values, real, sizes = [], [], [], []
        for head, (part, fill) in enumerate(zip(parts, missing, strict=True)):
            keys.append(F.pad(part.key[:, head], (0, 0, 0, fill)))
            values.append(F.pad(part.value[:, head], (0, 0, 0, fill)))
            all_real = torch.ones(1, part.key.shape[2], dtype=torch.bool, device=part.key.device)
            real.append(F.pad(all_real if part.real is None else part.real[:, 0], (0, fill)))
            if part.sizes is not None:
                sizes.append(F.pad(part.sizes[:, 0], (0, fill)))
        key, value, is_real = (torch.stack(each, dim=1) for each in (keys, values, real))
        return cls(key, value, is_real, torch.stack(sizes, dim=1) if sizes else None)

    def after_tokens(self, key: Tensor, value: Tensor, lengths: Tensor | None) -> Slots:
        """Put slots before these that are single tokens, of which the first `lengths` are real (None: all)."""
        tokens, device = key.shape[2], key.device
        first = torch.arange(tokens, device=device) < (tokens if lengths is None else lengths[:, None])
        first = first.view(-1, 1, tokens)
        real = self.real
        if lengths is not None:  # without tokens after the first ones, their slots stand for nothing
            has_rest = (lengths > tokens)[:, None, None]
            real = has_rest.expand(-1, -1, self.key.shape[2]) if real is None else has_rest & real
        return self._replace(
            key=torch.cat([key, self.key], dim=2),
            value=torch.cat([value, self.value], dim=2),
            real=None if real is None else _joined(first, real),
            sizes=first.long() if self.sizes is None else _joined(first.long(), self.sizes),
        )

    def block(self, samples: slice, rows: slice) -> Slots:
        """The slots for some queries of some of the sequences; of causal full attention those up to the last query."""
        seen = slice(rows.stop if self.is_causal else None)
        own = {name: take_block(getattr(self, name), samples, slice(None), seen) for name in ("key", "value", "real")}
        return self._replace(**own, neighbours=self.neighbours and self.neighbours.block(samples, rows))


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Two tensors, `[batch_or_1, heads_or_1, slots]`, one after the other."""
    shape = torch.broadcast_shapes(first.shape[:2], second.shape[:2])
    return torch.cat([first.expand(*shape, -1), second.expand(*shape, -1)], dim=2)


def attend_slots(
    query: Float[Tensor, "batch heads query_len head_dim"],
    slots: Slots,
    kernels: Kernels,
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len slots"] | None]:
    """Attention over the slots, and P̄ if requested.

    P̄ has no dropout applied; the output is computed from the returned tensor, so P̄ can receive gradients. With a
    sliding window it has w more columns, for the neighbours of each query from the first to the last.
    """
    near, mask = slots.neighbours, slots.mask
    if not need_weights:
        tensors = (query, slots.key, slots.value, mask, near)
        return kernels.attention(*tensors, is_causal=slots.is_causal, dropout=dropout), None
    if near is not None:
        blocks = Blocks.of(query, slots.key, slots.value, mask, near)
        weights = blocks.weights()
        return blocks.product(F.dropout(weights, dropout)), weights
    scores = query @ slots.key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if slots.is_causal:
        mask = not_later(query, slots.key)
    weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(dim=-1)
    return F.dropout(weights, dropout) @ slots.value, weights
