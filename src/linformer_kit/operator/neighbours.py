"""The sliding window: tokens that a query attends to exactly, in one softmax with the slots.

Query t sees the real tokens from ⌊w/2⌋ before it to ⌊(w - 1)/2⌋ after it, itself included; padding sees none. In causal
attention it sees the w - 1 tokens before it and itself, and of the slots those that stand for tokens up to t only.
Every sequence is right-padded.

Axes as in `slots`; `rows` are the queries of a block, `seen` the tokens that any of them sees, at least rows + w - 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from linformer_kit.operator.padding import of_block

_ROWS = 128  # of a block; all of them are multiplied with rows + w - 1 tokens; without slots half as many
_MOST_ROWS = 512  # with wide windows
_ALIGNED = 32  # columns: products and softmax of P̄ take 1.5 times as long with other numbers


class Neighbours(NamedTuple):
    """Keys and values of tokens, for queries that see those around their own position."""

    key: Float[Tensor, "batch heads seq_len head_dim"]
    value: Float[Tensor, "batch heads seq_len head_dim"]
    window: int  # w
    lengths: Int[Tensor, " batch"] | None = None  # number of real tokens of each sequence; None: all
    first: int = 0  # index of the first query's own token, if queries are only some of the tokens
    # The first slots: number j stands for the tokens from edges[j] up to edges[j + 1]. None: no slot does so.
    edges: Int[Tensor, "batch_or_1 heads_or_1 edges"] | None = None
    # Bias of the tokens of each block, if more than `window` and `lengths` decides it (`linearized.windows`).
    bias: Float[Tensor, "batch_or_1 blocks rows seen"] | None = None
    is_causal: bool = False  # queries see the w - 1 tokens before their own
    starts: Int[Tensor, " batch"] | None = None  # index of the first token of each text; None: 0

    @property
    def before(self) -> int:
        """The number of tokens that a query sees before its own."""
        return tokens_before(self.window, self.is_causal)

    def seen_by(
        self, positions: Int[Tensor, "*rows"]
    ) -> tuple[Int[Tensor, "batch_or_1 ..."], Int[Tensor, "batch_or_1 ..."]]:
        """The first token that the query at each position sees, and the one after the last."""
        limits = self.lengths
        if limits is None:
            limits = torch.full((1,), self.key.shape[2], device=positions.device)
        limits = limits.view(-1, *[1] * positions.dim())
        first = (positions - self.before).clamp(min=0).expand(limits.shape[0], *positions.shape)
        first = first if self.starts is None else torch.maximum(first, self.starts.view_as(limits))
        after = torch.minimum(positions + self.window - self.before, limits)
        return first, torch.where(positions < limits, after, first)

    def of_block(self, samples: slice, rows: slice) -> Neighbours:
        """The neighbours of some of the queries, which are whole blocks, in some of the sequences."""
        names = ("key", "value", "lengths", "edges", "bias", "starts")
        own = {name: of_block(getattr(self, name), samples) for name in names}
        if (bias := own["bias"]) is not None:
            own["bias"] = bias[:, rows.start // bias.shape[2] : -(-rows.stop // bias.shape[2])]
        return self._replace(**own, first=self.first + rows.start)


class Blocks(NamedTuple):
    """Queries in blocks of consecutive rows, each with its own columns: the slots, and all tokens that its rows see.

    `parts` are the blocks of all sequences, one sequence after the other.
    """

    query: Float[Tensor, "parts heads rows head_dim"]
    key: Float[Tensor, "parts heads columns head_dim"]
    value: Float[Tensor, "parts heads columns head_dim"]
    # What is added to the scores: -inf where a row does not see a column, and for a slot `log_unseen`.
    bias: Float[Tensor, "parts heads_or_1 rows columns"]
    window: int  # w
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
        rows, columns = block_size(length, slots, neighbours.window)
        count = block_count(length, rows)
        if neighbours.bias is not None:  # may be made in eager mode for a layer that is compiled
            _, count, rows, seen = neighbours.bias.shape
            columns = slots + seen
        starts = torch.arange(count, device=device)[:, None] * rows
        row = starts + torch.arange(rows, device=device) + neighbours.first
        start, seen = neighbours.first - neighbours.before, columns - slots
        token = starts + torch.arange(seen, device=device) + start
        first, after = (end[..., None] for end in neighbours.seen_by(row))
        dtype = bias_dtype or query.dtype
        if neighbours.bias is None:
            of_tokens = as_bias((token[:, None] >= first) & (token[:, None] < after), dtype)
        else:
            of_tokens = neighbours.bias.to(dtype)
        of_slots = torch.zeros(1, 1, 1, 1, slots, dtype=dtype, device=device)
        if neighbours.edges is not None:
            edges = neighbours.edges[:, :, None, None]
            unseen = log_unseen(edges[..., :-1], edges[..., 1:], first[:, None], after[:, None], dtype=dtype)
            if neighbours.is_causal:  # complete slots only; the window holds the tokens of the others
                unseen = unseen.masked_fill(edges[..., 1:] > row[..., None] + 1, -math.inf)
            of_slots = F.pad(unseen, (0, slots - unseen.shape[-1]))
        if mask is not None:
            of_slots = of_slots.masked_fill(~mask[:, :, None], -math.inf)
        heads = of_slots.shape[1]
        parts = [part.expand(batch, heads, count, rows, -1) for part in (of_slots, of_tokens[:, None])]

        def with_slots(of_slots: Tensor, tokens: Tensor) -> Tensor:
            blocks = _cut(tokens, start, rows, seen, count)
            if slots:
                shared = of_slots.transpose(1, 2)[:, None].expand(-1, count, -1, -1, -1)
                blocks = torch.cat([shared, blocks], dim=2)
            return blocks.flatten(0, 1).transpose(1, 2)

        return cls(
            _cut(query, 0, rows, rows, count).flatten(0, 1).transpose(1, 2),
            with_slots(key, neighbours.key),
            with_slots(value, neighbours.value),
            torch.cat(parts, dim=-1).transpose(1, 2).flatten(0, 1),
            neighbours.window,
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
        of_slots, of_seen = weights[..., : self.slots], weights[..., self.slots :]
        of_window = of_seen.gather(-1, self._columns().expand(*of_seen.shape[:-1], -1))
        return self.joined(torch.cat([of_slots, of_window], dim=-1)).transpose(1, 2)

    def product(
        self, weights: Float[Tensor, "batch heads queries slots_and_window"]
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The product of P̄ with the values."""
        rows = self.query.shape[2]
        blocks = _cut(weights, 0, rows, rows, self.blocks).flatten(0, 1).transpose(1, 2)
        of_slots, of_window = blocks[..., : self.slots], blocks[..., self.slots :]
        zeros = of_window.new_zeros(*of_window.shape[:-1], self.key.shape[2] - self.slots)
        of_seen = zeros.scatter(-1, self._columns().expand(of_window.shape), of_window)
        # Zero, also in gradients, for tokens that a row does not see.
        of_seen = of_seen.masked_fill(self.bias[..., self.slots :] == -math.inf, 0.0)
        return self.joined(torch.cat([of_slots, of_seen], dim=-1) @ self.value).transpose(1, 2)

    def _columns(self) -> Int[Tensor, "rows window"]:
        """The columns, after the slots, of the neighbours of each row."""
        first = torch.arange(self.query.shape[2], device=self.key.device)
        return first[:, None] + torch.arange(self.window, device=self.key.device)


def tokens_before(window: int, is_causal: bool) -> int:
    """The number of tokens of a window before the query's own."""
    return window - 1 if is_causal else window // 2


def block_size(length: int, slots: int, window: int) -> tuple[int, int]:
    """The number of rows of a block, and of its columns."""
    rows = max(_ROWS, min(window, _MOST_ROWS)) if slots else max(-(-_ROWS // 2), min(window // 2, _MOST_ROWS))
    if not torch.compiler.is_compiling():
        rows = max(1, min(rows, length))
    return rows, (slots + rows + window - 2 + _ALIGNED) // _ALIGNED * _ALIGNED


def block_count(length: int, rows: int) -> int:
    """The number of blocks of a sequence."""
    # A traced program must not depend on the length: always several blocks; and ONNX rounds towards zero.
    return (length + 2 * rows - 1) // rows if torch.compiler.is_compiling() else -(-length // rows)


def not_later(
    query: Float[Tensor, "batch heads query_len head_dim"], key: Float[Tensor, "batch heads keys head_dim"]
) -> Bool[Tensor, "query_len keys"]:
    """True where a key is not after the query, of queries that are those of the last keys."""
    queries, keys = query.shape[2], key.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)


def as_bias(visible: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """What is added to scores: -inf where nothing is to be seen."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, -math.inf)


def log_unseen(
    low: Int[Tensor, "*#shape"],
    high: Int[Tensor, "*#shape"],
    first: Int[Tensor, "*#shape"],
    after: Int[Tensor, "*#shape"],
    *,
    dtype: torch.dtype,
) -> Float[Tensor, ...]:
    """The logarithm of the share of the tokens from `low` to `high` that are not from `first` to `after`.

    So each token counts once: as a neighbour, or in its slot. Zero where there is no token.
    """
    both = (torch.minimum(high, after) - torch.maximum(low, first)).clamp(min=0)
    wide = torch.promote_types(dtype, torch.float32)
    count = (high - low).clamp(min=1)
    return ((count - both).to(wide).log() - count.to(wide).log()).to(dtype)


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
