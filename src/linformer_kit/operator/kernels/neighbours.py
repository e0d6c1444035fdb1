"""Attention over slots and the neighbours of each query: as `softmax`, for blocks of rows with few tokens each.

In each block, flash attention, or two batched products with a softmax between them: for the backward pass, with
dropout, and where flash attention does without the processor's bfloat16 instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from linformer_kit.operator.kernels.conditions import is_ordinary, must_be_plain, needs_gradient, widens
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.kernels.softmax import Dropout, add_to_bias, bias_gradient, hide
from linformer_kit.operator.neighbours import Blocks, Neighbours, log_unseen
from linformer_kit.operator.padding import Padding, of_samples

_SCORES = 1 << 20  # elements of a block of P̄
_ALIGNED = 32  # columns: products and softmax of P̄ take 1.5 times as long with other numbers
# The least rows of a block, by the bytes of an element; all of them are multiplied with rows + w - 1 tokens.
_ROWS = {2: 128, 4: 64, 8: 64}
_MOST_ROWS = 512  # with wide windows, so that scores of a block fit in memory


def attention_with_neighbours(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads slots head_dim"],
    value: Float[Tensor, "batch heads slots head_dim"],
    mask: Shaped[Tensor, "batch_or_1 heads_or_1 1 slots"] | None,
    neighbours: Neighbours,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query_len head_dim"]:
    """One softmax over the slots and the neighbours of each query, and the sum of the values with these weights.

    Args:
        query: Queries, in the order of the neighbours.
        key: Keys of the slots.
        value: Values of the slots.
        mask: `Slots.mask`.
        neighbours: Keys and values of the tokens.
        dropout: Dropout on the weights.
    """
    if not (_runs_on_cpu(query, key, value, neighbours) and 0 <= dropout < 1):
        return _plain(query, key, value, mask, neighbours, dropout)
    drop = Dropout.of(dropout) if dropout else None
    tensors = (query, key, value, neighbours.key, neighbours.value, mask)
    where = _Where.of(neighbours, query)
    if needs_gradient(*tensors):
        return _NeighbourAttention.apply(*tensors, where, drop)
    return _forward(*tensors, where, drop)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, neighbours: Neighbours, dropout: float = 0.0
) -> Tensor:
    blocks = Blocks.of(query, neighbours)
    of_slots, of_seen = (F.dropout(part, dropout) for part in blocks.weights(key, mask))
    return blocks.product(of_slots, of_seen, value)


def _runs_on_cpu(query: Tensor, key: Tensor, value: Tensor, neighbours: Neighbours) -> bool:
    tensors = (query, key, value, neighbours.key, neighbours.value)
    return (
        not must_be_plain()
        and all(map(is_ordinary, tensors))
        and len({tensor.dtype for tensor in tensors}) == 1
        and (not torch.is_autocast_enabled("cpu") or query.dtype == torch.get_autocast_dtype("cpu"))
    )


class _At(NamedTuple):
    """A block of rows, and the columns of its scores: the slots, then the tokens that some of its rows see."""

    samples: slice
    rows: slice
    slots: int
    seen: slice


class _Where(NamedTuple):
    """Which tokens queries see, how much of the slots these are, and the number format to compute in."""

    lengths: Int[Tensor, " batch"] | None
    window: int
    first: int
    edges: Int[Tensor, "batch_or_1 edges"] | None
    overlaps: _Overlaps | None
    dtype: torch.dtype

    @classmethod
    def of(cls, neighbours: Neighbours, query: Tensor) -> _Where:
        """For queries with these neighbours."""
        edges, dtype = neighbours.edges, torch.float32 if widens(query) else query.dtype
        wide = torch.promote_types(dtype, torch.float32)
        overlaps = None if edges is None else _Overlaps.of(neighbours, edges, query.shape[2], wide)
        return cls(neighbours.lengths, neighbours.window, neighbours.first, edges, overlaps, dtype)

    @property
    def flash(self) -> bool:
        """Whether flash attention is the fastest way for a block, if the weights themselves are not needed."""
        return not (self.dtype == torch.bfloat16 and Processor.here().bfloat16_in_blocks)

    def neighbours(self, key: Tensor, value: Tensor) -> Neighbours:
        """The same neighbours with these keys and values."""
        padding = None if self.lengths is None else Padding.after(self.lengths, key.shape[2])
        return Neighbours(key, value, self.window, padding, self.first, self.edges)

    def block(self, samples: slice, rows: slice, slots: int, tokens: int) -> _At:
        """The block of some rows, with a few tokens more, so that P̄ has aligned rows."""
        start = self.first + rows.start - self.window // 2
        columns = slots + rows.stop - rows.start + self.window - 1
        seen = slice(max(0, start), min(tokens, start - slots - (-columns // _ALIGNED) * _ALIGNED))
        return _At(samples, rows, slots, seen)

    def outside(self, at: _At, dtype: torch.dtype) -> Float[Tensor, "1 1 rows slots_and_seen"]:
        """What is added to the scores of a block: -inf for tokens outside of the windows of its rows, else 0."""
        rows, seen = at.rows.stop - at.rows.start, at.seen.stop - at.seen.start
        return _outside(rows, at.slots, seen, at.seen.start - self.first - at.rows.start, self.window, dtype)

    def hide_padding(self, scores: Tensor, at: _At) -> None:
        """Set the scores, `[samples, heads, rows, slots + seen]`, of padded tokens, and in padded rows, to -inf."""
        first, seen = self.first + at.rows.start, at.seen
        after = self.first + at.rows.stop
        if self.lengths is not None and int(self.lengths[at.samples].min()) < max(seen.stop, after):
            limit = self.lengths[at.samples, None, None, None]
            row = torch.arange(first, after, device="cpu")[:, None]
            token = torch.arange(seen.start, seen.stop, device="cpu")
            scores[..., at.slots :].masked_fill_((token >= limit) | (row >= limit), -torch.inf)


class _Overlaps(NamedTuple):
    """The slots that stand for tokens of each query's window."""

    slots: Int[Tensor, "batch_or_1 query_len most"]
    unseen: Float[Tensor, "batch_or_1 query_len most"]  # added to their scores

    @classmethod
    def of(cls, neighbours: Neighbours, edges: Tensor, queries: int, dtype: torch.dtype) -> _Overlaps:
        """For queries with these neighbours, and slots between these edges."""
        position = torch.arange(queries, device="cpu") + neighbours.first
        first, after = neighbours.seen_by(position)  # [batch_or_1, query_len]
        sequences = max(len(first), len(edges))
        first, after, starts, ends = (
            part.expand(sequences, -1).contiguous() for part in (first, after, edges[:, :-1], edges[:, 1:])
        )
        least = torch.searchsorted(ends, first, right=True)
        overlapping = torch.searchsorted(starts, after) - least
        most = int(overlapping.max().clamp(min=0)) if overlapping.numel() else 0
        slots = least[..., None] + torch.arange(most, device="cpu")
        slots = slots.masked_fill(slots >= starts.shape[1], 0)  # a row with fewer slots does not see the first
        low, high = (part.gather(1, slots.flatten(1)).view_as(slots) for part in (starts, ends))
        return cls(slots, log_unseen(low, high, first[..., None], after[..., None], dtype=dtype))

    def weigh(self, scores: Tensor, at: _At) -> None:
        """Let slots count for the tokens only that rows do not see; scores as in `_Where.hide_padding`."""
        slots, unseen = (of_samples(part, at.samples)[:, None, at.rows] for part in self)
        shape = (*scores.shape[:3], -1)
        scores.scatter_add_(-1, slots.expand(shape), unseen.to(scores.dtype).expand(shape))


@functools.lru_cache(maxsize=8)  # the same for all blocks but those at the ends of a text
def _outside(
    rows: int, slots: int, seen: int, start: int, window: int, dtype: torch.dtype
) -> Float[Tensor, "1 1 rows slots_and_seen"]:
    """-inf for tokens outside of the windows of rows, else 0; `start` is the first token's position from the first row.

    Adding it is faster than filling by a mask.
    """
    token = torch.arange(seen, device="cpu") + start
    offset = token - torch.arange(rows, device="cpu")[:, None] + window // 2
    outside = (offset < 0) | (offset >= window)
    bias = torch.zeros(1, 1, rows, slots + seen, dtype=dtype, device="cpu")
    bias[..., slots:].masked_fill_(outside, -torch.inf)
    return bias


def _score_blocks(query: Tensor, slots: int, where: _Where) -> Iterator[tuple[slice, list[slice]]]:
    """Samples, and the rows of each of their blocks."""
    batch, heads, length, _ = query.shape
    rows = max(_ROWS[where.dtype.itemsize], min(where.window, _MOST_ROWS))
    samples = max(1, _SCORES // (heads * min(rows, length) * (slots + rows + where.window)))
    parts = [slice(start, min(start + rows, length)) for start in range(0, length, rows)]
    for start in range(0, batch, samples):
        yield slice(start, min(start + samples, batch)), parts


class _Block:
    """Keys and values of a block of rows: the slots, which stay, followed by the tokens that the rows see."""

    def __init__(self, slots: Tensor, dtype: torch.dtype) -> None:
        self.slots = slots.flatten(0, 1).to(dtype)
        self.joined = self.slots

    def with_tokens(self, tokens: Tensor) -> Float[Tensor, "samples_and_heads columns head_dim"]:
        """Slots and tokens, one after the other; overwritten by the next call."""
        count, (batch, slots, dim) = tokens.shape[2], self.slots.shape
        if self.joined.shape[1] != slots + count:
            self.joined = self.slots.new_empty(batch, slots + count, dim)
            self.joined[:, :slots] = self.slots
        self.joined[:, slots:].unflatten(0, tokens.shape[:2]).copy_(tokens)
        return self.joined


def _weights(query: Tensor, keys: Tensor, mask: Tensor | None, where: _Where, at: _At) -> Tensor:
    """P̄ of a block of rows, `[samples · heads, rows, slots + seen]`."""
    samples, heads, rows, head_dim = query.shape
    weights = query.new_empty(samples * heads, rows, keys.shape[1])
    weights.baddbmm_(query.flatten(0, 1), keys.transpose(1, 2), beta=0, alpha=head_dim**-0.5)
    scores = weights.unflatten(0, (samples, heads))
    scores[..., at.slots :] += where.outside(at, scores.dtype)[..., at.slots :]
    _add_bias(scores, mask, where, at)
    return torch.softmax(weights, -1, out=weights)


def _add_bias(scores: Tensor, mask: Tensor | None, where: _Where, at: _At) -> None:
    """Add to the scores of a block, `[samples, heads, rows, slots + seen]`, what is not the same for all blocks."""
    hide(scores[..., : at.slots], of_samples(mask, at.samples))
    if where.overlaps is not None:
        where.overlaps.weigh(scores, at)
    where.hide_padding(scores, at)


def _flash_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, where: _Where, at: _At
) -> Float[Tensor, "samples heads rows head_dim"]:
    """The context of a block of rows without its scores in memory."""
    samples, heads, rows, _ = query.shape
    parts = [part for part in (mask, where.lengths, *(where.overlaps or ())) if part is not None]
    alike = all(len(part) == 1 for part in parts)
    shape = (1 if alike else samples, 1 if mask is None else mask.shape[1], rows, keys.shape[1])
    dtype = torch.promote_types(query.dtype, torch.float32)
    bias = query.new_empty(shape, dtype=dtype).copy_(where.outside(at, dtype))
    _add_bias(bias, mask, where, at)
    keys, values = (part.unflatten(0, (samples, heads)) for part in (keys, values))
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near_key: Tensor,
    near_value: Tensor,
    mask: Tensor | None,
    where: _Where,
    drop: Dropout | None,
) -> Tensor:
    """The context; in memory, positions come before heads."""
    batch, heads, length, _ = query.shape
    slots = key.shape[2]
    context = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    flash = drop is None and where.flash
    if drop:
        drop.start()
    for samples, parts in _score_blocks(query, slots, where):
        keys, values = _Block(key[samples], where.dtype), _Block(value[samples], where.dtype)
        for rows in parts:
            at = where.block(samples, rows, slots, near_key.shape[2])
            queries = query[samples, :, rows].to(where.dtype)
            of_keys = keys.with_tokens(near_key[samples, :, at.seen])
            of_values = values.with_tokens(near_value[samples, :, at.seen])
            if flash:
                context[samples, :, rows] = _flash_attention(queries, of_keys, of_values, mask, where, at)
                continue
            weights = _weights(queries, of_keys, mask, where, at)
            if drop:
                weights.masked_fill_(drop.next(weights), 0.0)
            context[samples, :, rows] = torch.bmm(weights, of_values).unflatten(0, (-1, heads))
    return context.mul_(drop.scale) if drop else context


class _NeighbourAttention(torch.autograd.Function):
    """`_forward` with gradients; weights and dropout masks are recomputed in the backward pass.

    Gradients of gradients are those of the plain operations.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.where, ctx.drop = arguments
        ctx.save_for_backward(*tensors)
        return _forward(*arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, near_key, near_value, mask = ctx.saved_tensors
        where, drop = ctx.where, ctx.drop
        create_graph = torch.is_grad_enabled()
        if create_graph or must_be_plain() or not is_ordinary(grad):  # or many gradients in one backward pass
            if drop is not None:
                raise NotImplementedError(
                    "second derivatives and batched gradients (is_grads_batched) with sliding_window: expected dropout "
                    "0 or operator.kernels.plain(), got dropout"
                )
            needed = ctx.needs_input_grad[: len(ctx.saved_tensors)]
            with torch.enable_grad():
                # Views, because slots that are global tokens are computed from the tokens: their gradients are apart.
                given: list[Any] = [None if part is None else part.view_as(part) for part in ctx.saved_tensors]
                query, key, value, near_key, near_value, mask = given
                context = _plain(query, key, value, mask, where.neighbours(near_key, near_value))
            tensors = [part for part, is_needed in zip(given, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(context, tensors, grad, create_graph=create_graph))
            return *(next(found) if is_needed else None for is_needed in needed), None, None
        heads, slots, scale = query.shape[1], key.shape[2], query.shape[-1] ** -0.5
        of_query = torch.empty_like(query)
        # Sum over blocks in full precision.
        full = torch.promote_types(query.dtype, torch.float32)
        of_key, of_value, of_near_key, of_near_value = (
            torch.zeros_like(part, dtype=full) for part in (key, value, near_key, near_value)
        )
        of_bias = bias_gradient(mask, ctx.needs_input_grad[5])
        if drop:
            drop.start()
            grad = grad * drop.scale
        for samples, parts in _score_blocks(query, slots, where):
            keys, values = _Block(key[samples], where.dtype), _Block(value[samples], where.dtype)
            for rows in parts:
                at = where.block(samples, rows, slots, near_key.shape[2])
                of_block = keys.with_tokens(near_key[samples, :, at.seen])
                queries, grads = (part[samples, :, rows].to(where.dtype) for part in (query, grad))
                grads = grads.flatten(0, 1)
                weights = _weights(queries, of_block, mask, where, at)
                columns = values.with_tokens(near_value[samples, :, at.seen]).transpose(1, 2)
                of_weights, kept = torch.bmm(grads, columns), weights
                if drop:
                    dropped = drop.next(weights)
                    kept, of_weights = weights.masked_fill(dropped, 0.0), of_weights.masked_fill_(dropped, 0.0)
                _add(of_value, of_near_value, torch.bmm(kept.transpose(1, 2), grads), at)
                of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                add_to_bias(of_bias, of_scores[..., :slots].unflatten(0, (-1, heads)), samples)
                of_scores.mul_(scale)
                of_query[samples, :, rows] = torch.bmm(of_scores, of_block).unflatten(0, (-1, heads))
                of_columns = torch.bmm(of_scores.transpose(1, 2), queries.flatten(0, 1))
                _add(of_key, of_near_key, of_columns, at)
        of_tensors = (of_key, of_value, of_near_key, of_near_value)
        of_mask = None if of_bias is None else of_bias.to(query.dtype)
        return of_query, *(part.to(query.dtype) for part in of_tensors), of_mask, None, None


def _add(of_slots: Tensor, of_tokens: Tensor, of_columns: Tensor, at: _At) -> None:
    """Add the gradient of a block's columns to those of slots and tokens."""
    by_head = of_columns.unflatten(0, (-1, of_slots.shape[1]))
    of_slots[at.samples] += by_head[:, :, : at.slots]
    of_tokens[at.samples, :, at.seen] += by_head[:, :, at.slots :]
