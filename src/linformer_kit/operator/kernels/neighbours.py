"""Attention over slots and the neighbours of each query, in few large calls.

Queries are cut into blocks of consecutive rows. A block has one row of columns: the slots, then the tokens that any of
its rows sees. Many blocks are one call of flash attention, or of two batched products with a softmax between them: with
dropout, and where flash attention does without the processor's bfloat16 instructions. Few calls, because each operation
waits for the slowest core, which costs most where other processes use the cores too (docs/speed.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from linformer_kit.operator.kernels.conditions import is_ordinary, must_be_plain, needs_gradient, widens
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.kernels.softmax import Dropout
from linformer_kit.operator.neighbours import Blocks, Neighbours, log_unseen
from linformer_kit.operator.padding import of_samples

_ROWS = 128  # of a block; all of them are multiplied with rows + w - 1 tokens
_MOST_ROWS = 512  # with wide windows
_COLUMNS = 6 << 20  # elements of the keys of one call of flash attention; larger tensors get new memory each time
_SCORES = 4 << 20  # elements of P̄ of one call without flash attention
_ALIGNED = 32  # columns: products and softmax of P̄ take 1.5 times as long with other numbers


def attention_with_neighbours(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads slots head_dim"],
    value: Float[Tensor, "batch heads slots head_dim"],
    mask: Bool[Tensor, "batch_or_1 heads_or_1 1 slots"] | None,
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
    tensors = (query, key, value, neighbours.key, neighbours.value, mask)
    if not (_runs_on_cpu(*tensors[:5]) and 0 <= dropout < 1):
        return _plain(*tensors, neighbours, dropout)
    drop = Dropout.of(dropout) if dropout else None
    attend = _NeighbourAttention.apply if needs_gradient(*tensors) else _forward
    return attend(*tensors, neighbours.without_tokens(), drop)


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near_key: Tensor,
    near_value: Tensor,
    mask: Tensor | None,
    where: Neighbours,
    dropout: float = 0.0,
) -> Tensor:
    blocks = Blocks.of(query, where._replace(key=near_key, value=near_value))
    of_slots, of_seen = (F.dropout(part, dropout) for part in blocks.weights(key, mask))
    return blocks.product(of_slots, of_seen, value)


def _runs_on_cpu(*tensors: Tensor) -> bool:
    query = tensors[0]
    return (
        not must_be_plain()
        and all(map(is_ordinary, tensors))
        and len({tensor.dtype for tensor in tensors}) == 1
        and (not torch.is_autocast_enabled("cpu") or query.dtype == torch.get_autocast_dtype("cpu"))
    )


class _Part(NamedTuple):
    """The rows of one call, in blocks, each with the same number of tokens."""

    samples: slice
    rows: slice
    blocks: int
    block_rows: int  # the last block is filled up
    block_tokens: int
    start: int  # position of the first block's first token: below 0 at the start of a text

    @property
    def span(self) -> int:
        """Number of positions from the first block's first token to the last block's last one."""
        return (self.blocks - 1) * self.block_rows + self.block_tokens

    def of(self, *tensors: Any) -> list[Any]:
        """The rows, slots and tokens of this part, of tensors in the order of `_forward`'s."""
        tokens = slice(max(0, self.start), self.start + self.span)
        of_rows, of_tokens = ((self.samples, slice(None), part) for part in (self.rows, tokens))
        places: tuple[Any, ...] = (of_rows, self.samples, self.samples, of_tokens, of_tokens)
        given = zip(tensors, places, strict=False)
        return [
            *(None if tensor is None else tensor[place] for tensor, place in given),
            of_samples(tensors[5], self.samples),
        ]

    def columns(
        self, slots: Float[Tensor, "samples heads slots head_dim"], tokens: Float[Tensor, "samples heads part head_dim"]
    ) -> Float[Tensor, "samples_and_blocks heads columns head_dim"]:
        """The columns of each block: the slots, and the tokens from its first one on, zeros beyond the text."""
        rows, before = tokens.transpose(1, 2), max(0, -self.start)
        after = self.span - before - rows.shape[1]
        if before or after:
            rows = F.pad(rows, (0, 0, 0, 0, before, after))
        of_blocks = rows.unfold(1, self.block_tokens, self.block_rows).movedim(-1, 2)
        shared = slots.transpose(1, 2)[:, None].expand(-1, self.blocks, -1, -1, -1)
        return torch.cat([shared, of_blocks], dim=2).flatten(0, 1).transpose(1, 2)

    def cut(
        self, query: Float[Tensor, "samples heads rows head_dim"]
    ) -> Float[Tensor, "samples_and_blocks heads block_rows head_dim"]:
        """Queries by block."""
        rows = query.transpose(1, 2)
        if missing := self.blocks * self.block_rows - rows.shape[1]:
            rows = F.pad(rows, (0, 0, 0, 0, 0, missing))
        return rows.unflatten(1, (self.blocks, self.block_rows)).flatten(0, 1).transpose(1, 2)

    def joined(
        self, context: Float[Tensor, "samples_and_blocks heads block_rows head_dim"]
    ) -> Float[Tensor, "samples heads rows head_dim"]:
        """The inverse of `cut`."""
        rows = context.transpose(1, 2).unflatten(0, (-1, self.blocks)).flatten(1, 2)
        return rows[:, : self.rows.stop - self.rows.start].transpose(1, 2)

    def bias(
        self, mask: Tensor | None, where: Neighbours, slots: int, dtype: torch.dtype
    ) -> Float[Tensor, "samples_or_1 blocks heads_or_1 block_rows columns"]:
        """What is added to the scores: -inf for hidden slots, and for tokens that a row does not see, else 0.

        To a slot's score, also the logarithm of the share of its tokens that the row does not see.
        """
        where = where._replace(edges=of_samples(where.edges, self.samples))
        where = where._replace(lengths=of_samples(where.lengths, self.samples))
        first_token = self.start + torch.arange(self.blocks, device="cpu")[:, None] * self.block_rows
        token = first_token + torch.arange(self.block_tokens, device="cpu")
        row = first_token + where.before + torch.arange(self.block_rows, device="cpu")
        first, after = (end[..., None] for end in where.seen_by(row))
        sees = (token[:, None] >= first) & (token[:, None] < after)
        of_tokens = torch.zeros(sees.shape, dtype=dtype, device="cpu").masked_fill_(~sees, -torch.inf)[:, :, None]
        of_slots = torch.zeros(1, 1, 1, 1, slots, dtype=dtype, device="cpu")
        if where.edges is not None:
            edges = where.edges[:, None, :, None]
            unseen = log_unseen(edges[..., :-1], edges[..., 1:], first[:, :, None], after[:, :, None], dtype=dtype)
            of_slots = F.pad(unseen, (0, slots - unseen.shape[-1]))
        if mask is not None:
            of_slots = of_slots.where(mask[:, None], -torch.inf)
        shape = torch.broadcast_shapes(of_slots.shape[:-1], of_tokens.shape[:-1])
        return torch.cat([part.expand(*shape, -1) for part in (of_slots, of_tokens)], dim=-1)


def _parts(query: Tensor, slots: int, where: Neighbours, *, flash: bool) -> Iterator[_Part]:
    """Parts that cover all rows; the rows of one call are bounded."""
    batch, heads, length, head_dim = query.shape
    block_rows = max(1, min(length, max(_ROWS, min(where.window, _MOST_ROWS))))
    columns = -(-(slots + block_rows + where.window - 1) // _ALIGNED) * _ALIGNED
    most = _COLUMNS * block_rows // (heads * head_dim * columns) if flash else _SCORES // (heads * columns)
    samples, rows = max(1, most // max(1, length)), max(1, most // block_rows) * block_rows
    for sample in range(0, batch, samples):
        for row in range(0, length, rows):
            end = min(row + rows, length)
            yield _Part(
                samples=slice(sample, min(sample + samples, batch)),
                rows=slice(row, end),
                blocks=-(-(end - row) // block_rows),
                block_rows=block_rows,
                block_tokens=columns - slots,
                start=where.first + row - where.before,
            )


def _uses_flash(query: Tensor, drop: Dropout | None) -> bool:
    return drop is None and not (query.dtype == torch.bfloat16 and Processor.here().bfloat16_in_blocks)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near_key: Tensor,
    near_value: Tensor,
    mask: Tensor | None,
    where: Neighbours,
    drop: Dropout | None,
) -> Tensor:
    """The context; in memory, positions come before heads."""
    batch, heads, length, _ = query.shape
    context = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    if drop:
        drop.start()
    for part in _parts(query, key.shape[2], where, flash=_uses_flash(query, drop)):
        given = part.of(query, key, value, near_key, near_value, mask)
        context[part.samples, :, part.rows] = _attend(part, *given, where=where, drop=drop)
    return context.mul_(drop.scale) if drop else context


def _attend(
    part: _Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near_key: Tensor,
    near_value: Tensor,
    mask: Tensor | None,
    *,
    where: Neighbours,
    drop: Dropout | None,
) -> Tensor:
    """The context of the rows of a part, from its tensors; without the factor of dropout."""
    given, flash = query.dtype, _uses_flash(query, drop)
    dtype = torch.float32 if widens(query) else given
    query, key, value, near_key, near_value = (each.to(dtype) for each in (query, key, value, near_key, near_value))
    queries, keys, values = part.cut(query), part.columns(key, near_key), part.columns(value, near_value)
    bias = part.bias(mask, where, key.shape[2], torch.promote_types(dtype, torch.float32) if flash else dtype)
    bias = bias.expand(len(query), -1, -1, -1, -1).flatten(0, 1)
    if flash:
        context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
    else:
        scores = torch.matmul(queries * queries.shape[-1] ** -0.5, keys.transpose(2, 3))
        weights = scores.add_(bias).softmax(dim=-1)
        context = (weights.masked_fill(drop.next(weights), 0.0) if drop else weights) @ values
    return part.joined(context).to(given)


class _NeighbourAttention(torch.autograd.Function):
    """`_forward` with gradients; only its inputs are kept, and the backward pass computes each part again.

    Gradients of gradients are those of the plain operations.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.where, ctx.drop = arguments
        ctx.save_for_backward(*tensors)
        return _forward(*arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[: len(tensors)]
        create_graph = torch.is_grad_enabled()
        if create_graph or must_be_plain() or not is_ordinary(grad):  # or many gradients in one backward pass
            if ctx.drop is not None:
                raise NotImplementedError(
                    "second derivatives and batched gradients (is_grads_batched) with sliding_window: expected dropout "
                    "0 or operator.kernels.plain(), got dropout"
                )
            plain = functools.partial(_plain, where=ctx.where)
            return *_gradients(plain, tensors, needed, grad, create_graph=create_graph), None, None
        # Sum over parts in full precision.
        totals = [
            torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32)) if is_needed else None
            for each, is_needed in zip(tensors, needed, strict=True)
        ]
        drop, query, slots = ctx.drop, tensors[0], tensors[1].shape[2]
        if drop:
            drop.start()
            grad = grad * drop.scale
        for part in _parts(query, slots, ctx.where, flash=_uses_flash(query, drop)):
            attend = functools.partial(_attend, part, where=ctx.where, drop=drop)
            found = _gradients(attend, part.of(*tensors), needed, grad[part.samples, :, part.rows])
            for total, of_part in zip(part.of(*totals), found, strict=True):
                if of_part is not None:
                    total += of_part
        sums = (None if of is None else of.to(each.dtype) for of, each in zip(totals, tensors, strict=True))
        return *sums, None, None


def _gradients(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    needed: Sequence[bool],
    grad: Tensor,
    *,
    create_graph: bool = False,
) -> list[Tensor | None]:
    """Gradients of a function's result for those of its arguments that need one."""
    with torch.enable_grad():
        # Views, because slots that are global tokens are computed from the tokens: their gradients are apart.
        given = [
            each
            if each is None
            else each.view_as(each)
            if each.requires_grad
            else each.detach().requires_grad_(is_needed)
            for each, is_needed in zip(tensors, needed, strict=True)
        ]
        result = function(*given)
    wanted = [each for each, is_needed in zip(given, needed, strict=True) if each is not None and is_needed]
    found = iter(torch.autograd.grad(result, wanted, grad, create_graph=create_graph))
    return [next(found) if is_needed else None for is_needed in needed]
