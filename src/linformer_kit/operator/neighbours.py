"""The sliding window: tokens that a query attends to exactly, in one softmax with the slots.

Query t sees the real tokens from ⌊w/2⌋ before it to ⌊(w - 1)/2⌋ after it, itself included; padding sees none.
Every sequence is right-padded.

Axes as in `slots`; `rows` are the queries of a block, `seen` the tokens that any of them sees, rows + w - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from linformer_kit.operator.padding import of_samples, padding_after

# Of some tensors, the last tokens of the piece before and the first of the piece after; how many of each.
Exchange = Callable[[list[Tensor], int, int], tuple[list[Tensor], list[Tensor]]]
_LEAST_ROWS = 32  # of a block: smaller products are slower than the tokens that they leave out


class Neighbours(NamedTuple):
    """Keys and values of tokens, for queries that see those around their own position."""

    key: Float[Tensor, "batch heads seq_len head_dim"]
    value: Float[Tensor, "batch heads seq_len head_dim"]
    window: int  # w
    lengths: Int[Tensor, " batch"] | None = None  # number of real tokens of each sequence; None: all
    first: int = 0  # index of the first query's own token, if queries are only some of the tokens
    # The first slots: number j stands for the tokens from edges[j] up to edges[j + 1]. None: no slot does so.
    edges: Int[Tensor, "batch_or_1 heads_or_1 edges"] | None = None
    offset: int = 0  # position of the first token, if these are a piece of a sequence

    @property
    def before(self) -> int:
        """The number of tokens that a query sees before its own."""
        return self.window // 2

    def around(self, exchange: Exchange, offset: int) -> Neighbours:
        """With the tokens on both sides of a piece of a sequence, which its first and last queries see.

        Args:
            exchange: `Piece.exchange`.
            offset: Position of the piece in the sequence.
        """
        batch, _, length, _ = self.key.shape
        is_real = self.key.new_ones(batch, length, 1)
        if self.lengths is not None:
            is_real = is_real.masked_fill(padding_after(self.lengths, length)[..., None], 0.0)
        before, after = exchange([self.key, self.value, is_real], self.before, self.window - self.before - 1)
        first = min(offset, self.before)  # before the first piece there are no tokens
        key, value = (
            torch.cat([left[:, :, self.before - first :], part, right], dim=2)
            for left, part, right in zip(before[:2], (self.key, self.value), after[:2], strict=True)
        )
        # Before a piece with tokens all are real.
        real = first + (length if self.lengths is None else self.lengths) + (after[2] != 0).sum((1, 2))
        return self._replace(key=key, value=value, first=first, offset=offset - first, lengths=real)

    def seen_by(
        self, positions: Int[Tensor, "*rows"]
    ) -> tuple[Int[Tensor, "batch_or_1 ..."], Int[Tensor, "batch_or_1 ..."]]:
        """The first token that the query at each position sees, and the one after the last."""
        limits = self.lengths
        if limits is None:
            limits = torch.full((1,), self.key.shape[2], device=positions.device)
        limits = limits.view(-1, *[1] * positions.dim())
        first = (positions - self.before).clamp(min=0).expand(limits.shape[0], *positions.shape)
        after = torch.minimum(positions + self.window - self.before, limits)
        return first, torch.where(positions < limits, after, first)

    def of_samples(self, samples: slice) -> Neighbours:
        """The neighbours in some of the sequences."""
        return self._replace(
            key=self.key[samples],
            value=self.value[samples],
            edges=of_samples(self.edges, samples),
            lengths=of_samples(self.lengths, samples),
        )

    def of_rows(self, rows: slice) -> Neighbours:
        """The neighbours of some of the queries."""
        return self._replace(first=self.first + rows.start)


class Blocks(NamedTuple):
    """Queries in blocks of consecutive rows, each with the keys and values of all tokens that its rows see."""

    query: Float[Tensor, "batch heads blocks rows head_dim"]
    key: Float[Tensor, "batch heads blocks seen head_dim"]
    value: Float[Tensor, "batch heads blocks seen head_dim"]
    sees: Bool[Tensor, "batch_or_1 blocks rows seen"]  # whether a row sees a token
    # Logarithms of the shares of the first slots that are outside of the rows' windows.
    unseen: Float[Tensor, "batch_or_1 heads_or_1 blocks rows first_slots"] | None
    length: int  # number of queries; the last block is filled up

    @classmethod
    def of(
        cls,
        query: Float[Tensor, "batch heads query_len head_dim"],
        neighbours: Neighbours,
        rows: int | None = None,
        seen: int | None = None,
    ) -> Blocks:
        """Cut queries into blocks.

        Args:
            query: The queries.
            neighbours: The tokens around them.
            rows: Rows of a block; None: about w.
            seen: Tokens of a block, at least rows + w - 1, those that its rows see.
        """
        length, device, is_compiling = query.shape[2], query.device, torch.compiler.is_compiling()
        if rows is None:
            rows = max(neighbours.window, _LEAST_ROWS)
            rows = rows if is_compiling else max(1, min(rows, length))
        seen = rows + neighbours.window - 1 if seen is None else seen
        # A traced program must not depend on the length: always several blocks; and ONNX rounds towards zero.
        count = (length + 2 * rows - 1) // rows if is_compiling else -(-length // rows)
        starts = torch.arange(count, device=device) * rows
        row = starts[:, None] + torch.arange(rows, device=device) + neighbours.first
        start = neighbours.first - neighbours.before
        token = starts[:, None] + torch.arange(seen, device=device) + start
        first, after = (end[..., None] for end in neighbours.seen_by(row))
        unseen = None
        if neighbours.edges is not None:
            edges = neighbours.edges[:, :, None, None]
            unseen = log_unseen(edges[..., :-1], edges[..., 1:], first[:, None], after[:, None], dtype=query.dtype)
        return cls(
            _cut(query, 0, rows, rows, count),
            _cut(neighbours.key, start, rows, seen, count),
            _cut(neighbours.value, start, rows, seen, count),
            (token[:, None, :] >= first) & (token[:, None, :] < after),
            unseen,
            length,
        )

    def weights(
        self,
        key: Float[Tensor, "batch heads slots head_dim"],
        mask: Bool[Tensor, "batch_or_1 heads_or_1 1 slots"] | None,
    ) -> tuple[Float[Tensor, "batch heads blocks rows slots"], Float[Tensor, "batch heads blocks rows seen"]]:
        """One softmax over the slots, with `Slots.mask`, and the tokens that each row sees."""
        query = self.query * self.query.shape[-1] ** -0.5
        of_slots = (query.flatten(2, 3) @ key.transpose(-2, -1)).unflatten(2, query.shape[2:4])
        scores = torch.cat([of_slots, _products(query, self.key.transpose(-2, -1))], dim=-1)
        weights = (scores + self.bias(mask, key.shape[2], scores.dtype)).softmax(dim=-1)
        return weights[..., : key.shape[2]], weights[..., key.shape[2] :]

    def product(
        self,
        of_slots: Float[Tensor, "batch heads blocks rows slots"],
        of_seen: Float[Tensor, "batch heads blocks rows seen"],
        value: Float[Tensor, "batch heads slots head_dim"],
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The weighted sum of the values of slots and tokens."""
        return self.joined((of_slots.flatten(2, 3) @ value).view_as(self.query) + _products(of_seen, self.value))

    def joined(
        self, blocks: Shaped[Tensor, "batch heads blocks rows last"]
    ) -> Shaped[Tensor, "batch heads queries last"]:
        """Rows of all blocks, one after the other."""
        rows = blocks.flatten(2, 3)
        if torch.compiler.is_compiling():  # a slice would compare the length with that of the blocks
            return rows.index_select(2, torch.arange(self.length, device=rows.device))
        return rows[:, :, : self.length]

    def cut(self, rows: Shaped[Tensor, "batch heads queries last"]) -> Shaped[Tensor, "batch heads blocks rows last"]:
        """The inverse of `joined`; the last block is filled up."""
        blocks, count = self.query.shape[2:4]
        return _cut(rows, 0, count, count, blocks)

    def bias(
        self, mask: Bool[Tensor, "batch_or_1 heads_or_1 1 slots"] | None, slots: int, dtype: torch.dtype
    ) -> Float[Tensor, "... blocks rows columns"]:
        """What is added to the scores of slots and tokens: -inf where they are not seen, and `unseen`."""
        of_tokens = torch.zeros(self.sees.shape, dtype=dtype, device=self.sees.device)
        of_tokens = of_tokens.where(self.sees, -math.inf)[:, None]
        of_slots = torch.zeros(1, 1, 1, 1, slots, dtype=dtype, device=self.sees.device)
        if self.unseen is not None:
            of_slots = F.pad(self.unseen.to(dtype), (0, slots - self.unseen.shape[-1]))
        if mask is not None:
            of_slots = of_slots.where(mask[:, :, None], -math.inf)
        shape = torch.broadcast_shapes(of_slots.shape[:-1], of_tokens.shape[:-1])
        return torch.cat([part.expand(*shape, -1) for part in (of_slots, of_tokens)], dim=-1)

    def by_neighbour(
        self, of_seen: Float[Tensor, "batch heads blocks rows seen"]
    ) -> Float[Tensor, "batch heads blocks rows window"]:
        """From one column for each token of the block to one for each neighbour of the row."""
        return of_seen.gather(-1, self._columns().expand(*of_seen.shape[:-1], -1))

    def by_token(
        self, of_window: Float[Tensor, "batch heads blocks rows window"]
    ) -> Float[Tensor, "batch heads blocks rows seen"]:
        """The inverse of `by_neighbour`; zero, also in gradients, for tokens that a row does not see."""
        zeros = of_window.new_zeros(*of_window.shape[:-1], self.key.shape[3])
        of_seen = zeros.scatter(-1, self._columns().expand(of_window.shape), of_window)
        return of_seen.masked_fill(~self.sees[:, None], 0.0)

    def _columns(self) -> Int[Tensor, "rows window"]:
        rows, seen = self.query.shape[3], self.key.shape[3]
        first = torch.arange(rows, device=self.key.device)
        return first[:, None] + torch.arange(seen - rows + 1, device=self.key.device)


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


def _products(
    left: Float[Tensor, "batch heads blocks rows inner"], right: Float[Tensor, "batch heads blocks inner columns"]
) -> Float[Tensor, "batch heads blocks rows columns"]:
    """The product of each block; in one axis, since `@` with three would compare their numbers when traced."""
    return torch.bmm(left.flatten(0, 2), right.flatten(0, 2)).unflatten(0, left.shape[:3])


def _cut(
    tokens: Shaped[Tensor, "batch heads seq_len last"], start: int, step: int, size: int, count: int
) -> Shaped[Tensor, "batch heads blocks size last"]:
    """Blocks of tokens: number i has those from start + i·step on; beyond the ends, any finite numbers."""
    length = tokens.shape[2]
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        first = start + torch.arange(count, device=tokens.device)[:, None] * step
        positions = (first + torch.arange(size, device=tokens.device)).clamp(0, length - 1)
        return tokens.index_select(2, positions.flatten()).unflatten(2, tuple(positions.shape))
    end = start + (count - 1) * step + size
    part = tokens[:, :, max(0, start) : end].transpose(1, 2)  # in memory, positions come before heads
    if (before := max(0, -start)) or end > length:
        part = F.pad(part, (0, 0, 0, 0, before, max(0, end - length)))
    return part.unfold(1, size, step).permute(0, 2, 1, 4, 3)
