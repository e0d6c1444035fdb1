"""Attention to the tokens of a sliding window, in one softmax with the slots, in blocks of queries.

In causal attention a query sees of the slots those only that stand for tokens up to its own. Axes as in `window`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from linformer_kit.operator.padding import take_block
from linformer_kit.operator.window import Window, as_bias, block_count, log_unseen


class Neighbours(NamedTuple):
    """Keys and values of the tokens that queries see around their own position."""

    key: Float[Tensor, "batch heads seq_len head_dim"]
    value: Float[Tensor, "batch heads seq_len head_dim"]
    window: Window
    # The first slots: number j stands for the tokens from edges[j] up to edges[j + 1]. None: no slot does so.
    edges: Int[Tensor, "batch_or_1 heads_or_1 edges"] | None = None
    # Bias of the tokens of each block, if more than the window decides it (`linearized.windows`).
    bias: Float[Tensor, "batch_or_1 blocks rows seen"] | None = None

    def block(self, samples: slice, rows: slice) -> Neighbours:
        """The neighbours of some of the queries, which are whole blocks, in some of the sequences."""
        own = {name: take_block(getattr(self, name), samples) for name in ("key", "value", "edges", "bias")}
        if (bias := own["bias"]) is not None:
            own["bias"] = bias[:, rows.start // bias.shape[2] : -(-rows.stop // bias.shape[2])]
        return self._replace(**own, window=self.window.block(samples, rows))


class Blocks(NamedTuple):
    """Queries in blocks of consecutive rows, each with its own columns: the slots, and all tokens that its rows see.

    `parts` are the blocks of all sequences, one sequence after the other.
    """

    query: Float[Tensor, "parts heads rows head_dim"]
    key: Float[Tensor, "parts heads columns head_dim"]
    value: Float[Tensor, "parts heads columns head_dim"]
    # What is added to the scores: -inf where a row does not see a column, and for a slot `log_unseen`.
    bias: Float[Tensor, "parts heads_or_1 rows columns"]
    width: int  # w, of the window
    slots: int  # k
    blocks: int  # of a sequence
    length: int  # number of queries; the last block is filled up

    @classmethod
    def of(
        cls,
        query: Float[Tensor, "batch heads query_len head_dim"],
        key: Float[Tensor, "batch heads slots head_dim"],
        value: Float[Tensor, "batch heads slots head_dim"],
        mask: Bool[Tensor, "batch_or_1 heads_or_1 1 slots"] | None,
        neighbours: Neighbours,
        bias_dtype: torch.dtype | None = None,
    ) -> Blocks:
        """Cut queries into blocks.

        Args:
            query: Queries, in the order of the neighbours.
            key: Keys of the slots.
            value: Values of the slots.
            mask: `Slots.mask`.
            neighbours: Keys and values of the tokens.
            bias_dtype: Number format of the bias; None: that of the queries.
        """
        (batch, _, length, _), device, slots = query.shape, query.device, key.shape[2]
        window = neighbours.window
        rows, columns = window.block_size(length, slots)
        count = block_count(length, rows)
        if neighbours.bias is not None:  # may be made in eager mode for a layer that is compiled
            _, count, rows, seen = neighbours.bias.shape
            columns = slots + seen
        starts = torch.arange(count, device=device)[:, None] * rows
        row = starts + torch.arange(rows, device=device) + window.first
        start, seen = window.first - window.before, columns - slots
        token = starts + torch.arange(seen, device=device) + start
        first, after = (end[..., None] for end in window.seen_by(row, neighbours.key.shape[2]))
        dtype = bias_dtype or query.dtype
        if neighbours.bias is None:
            token_bias = as_bias((token[:, None] >= first) & (token[:, None] < after), dtype)
        else:
            token_bias = neighbours.bias.to(dtype)
        slot_bias = torch.zeros(1, 1, 1, 1, slots, dtype=dtype, device=device)
        if neighbours.edges is not None:
            edges = neighbours.edges[:, :, None, None]
            unseen = log_unseen(edges[..., :-1], edges[..., 1:], first[:, None], after[:, None], dtype=dtype)
            if window.is_causal:  # complete slots only; the window holds the tokens of the others
                unseen = unseen.masked_fill(edges[..., 1:] > row[..., None] + 1, -math.inf)
            slot_bias = F.pad(unseen, (0, slots - unseen.shape[-1]))
        if mask is not None:
            slot_bias = slot_bias.masked_fill(~mask[:, :, None], -math.inf)
        heads = slot_bias.shape[1]
        parts = [part.expand(batch, heads, count, rows, -1) for part in (slot_bias, token_bias[:, None])]

        def with_slots(slots_first: Tensor, tokens: Tensor) -> Tensor:
            blocks = _cut(tokens, start, rows, seen, count)
            if slots:
                shared = slots_first.transpose(1, 2)[:, None].expand(-1, count, -1, -1, -1)
                blocks = torch.cat([shared, blocks], dim=2)
            return blocks.flatten(0, 1).transpose(1, 2)

        return cls(
            _cut(query, 0, rows, rows, count).flatten(0, 1).transpose(1, 2),
            with_slots(key, neighbours.key),
            with_slots(value, neighbours.value),
            torch.cat(parts, dim=-1).transpose(1, 2).flatten(0, 1),
            window.width,
            slots,
            count,
            length,
        )

    def joined(self, blocks: Shaped[Tensor, "parts heads rows last"]) -> Shaped[Tensor, "batch queries heads last"]:
        """Rows of all blocks of a sequence, one after the other."""
        rows = blocks.transpose(1, 2).unflatten(0, (-1, self.blocks)).flatten(1, 2)
        if torch.compiler.is_compiling():  # a slice would compare the length with that of the blocks
            return rows.index_select(1, torch.arange(self.length, device=rows.device))
        return rows[:, : self.length]

    def weights(self) -> Float[Tensor, "batch heads queries slots_and_window"]:
        """P̄: the weights of the slots, and then of each neighbour of the query."""
        scores = self.query @ self.key.transpose(-2, -1) * self.query.shape[-1] ** -0.5
        weights = (scores + self.bias).softmax(dim=-1)
        slot_weights, seen_weights = weights[..., : self.slots], weights[..., self.slots :]
        window_weights = seen_weights.gather(-1, self._columns().expand(*seen_weights.shape[:-1], -1))
        return self.joined(torch.cat([slot_weights, window_weights], dim=-1)).transpose(1, 2)

    def product(
        self, weights: Float[Tensor, "batch heads queries slots_and_window"]
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The product of P̄ with the values."""
        rows = self.query.shape[2]
        blocks = _cut(weights, 0, rows, rows, self.blocks).flatten(0, 1).transpose(1, 2)
        slot_weights, window_weights = blocks[..., : self.slots], blocks[..., self.slots :]
        zeros = window_weights.new_zeros(*window_weights.shape[:-1], self.key.shape[2] - self.slots)
        seen_weights = zeros.scatter(-1, self._columns().expand(window_weights.shape), window_weights)
        # Zero, also in gradients, for tokens that a row does not see.
        seen_weights = seen_weights.masked_fill(self.bias[..., self.slots :] == -math.inf, 0.0)
        return self.joined(torch.cat([slot_weights, seen_weights], dim=-1) @ self.value).transpose(1, 2)

    def _columns(self) -> Int[Tensor, "rows window"]:
        """The columns, after the slots, of the neighbours of each row."""
        first = torch.arange(self.query.shape[2], device=self.key.device)
        return first[:, None] + torch.arange(self.width, device=self.key.device)


def _cut(
    tokens: Shaped[Tensor, "batch heads seq_len last"], start: int, step: int, size: int, count: int
) -> Shaped[Tensor, "batch {count} {size} heads last"]:
    """Blocks of tokens: number i has those from start + i·step on; beyond the ends, any finite numbers."""
    tokens = tokens.transpose(1, 2)  # in memory, positions come before heads
    length = tokens.shape[1]
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        first = start + torch.arange(count, device=tokens.device)[:, None] * step
        positions = (first + torch.arange(size, device=tokens.device)).clamp(0, length - 1)
        return tokens.index_select(1, positions.flatten()).unflatten(1, tuple(positions.shape))
    end = start + (count - 1) * step + size
    part = tokens[:, max(0, start) : end]
    if (before := max(0, -start)) or end > length:
        part = F.pad(part, (0, 0, 0, 0, before, max(0, end - length)))
    return part.unfold(1, size, step).permute(0, 1, 4, 2, 3)
