"""Attention over few keys: two batched products with a softmax between them, over blocks that fit in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from linformer_kit.operator.kernels.conditions import (
    in_float32,
    is_ordinary,
    must_be_plain,
    needs_gradient,
    widens,
)
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.kernels.tokens import blocks
from linformer_kit.operator.padding import of_samples

_SCORES = 3 << 20  # elements of a block of the context mapping


def attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    mask: Bool[Tensor, "batch_or_1 heads_or_1 1 keys"] | None = None,
    *,
    dropout: float = 0.0,
    few_keys: bool = True,
) -> Float[Tensor, "batch heads query_len head_dim"]:
    """softmax(Q·Kᵀ/√d)·V, without the whole query_len × keys matrix in memory.

    In bfloat16, batched products over blocks of queries may be faster on CPUs than torch's flash attention
    (`Processor.attends_in_blocks`). There are few slots, so all scores of a block fit in the cache. They are rounded to
    bfloat16 before the softmax, as in eager attention; flash attention keeps them in float32. In a format that the
    processor has no instructions for, computes in float32 and rounds once.

    Args:
        query: Queries.
        key: Keys; fastest in the layout of `arranged`.
        value: Values, likewise.
        mask: True where a key may be attended to; at least one key in each sequence.
        dropout: Dropout on the weights.
        few_keys: Whether to use batched products where they are faster for few keys; otherwise flash attention.
    """
    if widens(query, key, value):
        dtype = query.dtype
        query, key, value = in_float32(query, key, value)
        return attention(query, key, value, mask, dropout=dropout, few_keys=few_keys).to(dtype)
    if not (few_keys and 0 <= dropout < 1 and _attends_in_blocks(query, key, value, dropout)):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    drop = Dropout.of(dropout) if dropout else None
    if needs_gradient(query, key, value):
        return _BlockAttention.apply(query, key, value, mask, drop)
    return _block_attention(query, key, value, mask, drop)


def arranged(
    key: Float[Tensor, "batch heads keys head_dim"], value: Float[Tensor, "batch heads keys head_dim"]
) -> tuple[Float[Tensor, "batch heads keys head_dim"], Float[Tensor, "batch heads keys head_dim"]]:
    """Copy keys and values to the memory layout that is fastest for repeated calls of `attention`."""
    if _attends_in_blocks(key, key, value):
        return key.transpose(2, 3).contiguous().transpose(2, 3), value.contiguous()
    return key.contiguous(), value.contiguous()


def _attends_in_blocks(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> bool:
    return (
        not must_be_plain()
        and query.dtype == key.dtype == value.dtype == torch.bfloat16
        and all(map(is_ordinary, (query, key, value)))
        and (not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") == torch.bfloat16)
        and bool(torch.backends.mkldnn.enabled)
        and Processor.here().attends_in_blocks(
            query.shape[-2], key.shape[-2], dropout=dropout, gradient=needs_gradient(query, key, value)
        )
    )


class Dropout:
    """Dropout masks block by block, reproducible from a seed.

    torch draws a number for every weight, on one core. Here one 64-bit number is used for four weights, so the
    probability is a multiple of 2⁻¹⁶.
    """

    def __init__(self, probability: float, seed: int) -> None:
        self.dropped = min(round(probability * 2**16), 2**16 - 1)
        self.scale = 2**16 / (2**16 - self.dropped)
        self.seed = seed
        self.generator = torch.Generator("cpu")

    @classmethod
    def of(cls, probability: float) -> Dropout:
        """With a seed drawn from the default generator."""
        return cls(probability, int(torch.randint(1 << 62, (), device="cpu")))

    def start(self) -> None:
        """Restart at the first block."""
        self.generator.manual_seed(self.seed)

    def next(self, weights: Tensor) -> Tensor:
        """The mask of the next block, True for weights to drop."""
        words = torch.empty(-(-weights.numel() // 4), dtype=torch.int64, device="cpu")
        numbers = words.random_(-(2**63), None, generator=self.generator).view(torch.int16)
        return (numbers[: weights.numel()] < self.dropped - 2**15).view(weights.shape)


def _block_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, drop: Dropout | None = None
) -> Tensor:
    """The context, `[batch, heads, query_len, head_dim]`; in memory, positions come before heads."""
    batch, heads, length, _ = query.shape
    context = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    key, value = key.transpose(2, 3).contiguous(), value.contiguous()
    if drop:
        drop.start()
    for samples, rows in _score_blocks(query, key.shape[-1]):
        weights = _block_weights(query[samples, :, rows], key[samples], of_samples(mask, samples))
        if drop:
            weights.masked_fill_(drop.next(weights), 0.0)
        context[samples, :, rows] = torch.bmm(weights, value[samples].flatten(0, 1)).unflatten(0, (-1, heads))
    return context.mul_(drop.scale) if drop else context


class _BlockAttention(torch.autograd.Function):
    """`_block_attention` with gradients; weights and dropout masks are recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, drop: Dropout | None
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.drop = drop
        if drop is None and Processor.here().flash_in_bfloat16:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return _block_attention(query, key, value, mask, drop)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mask = ctx.saved_tensors
        heads, scale, drop = query.shape[1], query.shape[-1] ** -0.5, ctx.drop
        of_query = torch.empty_like(query)
        # Sum over blocks in full precision.
        full = torch.promote_types(query.dtype, torch.float32)
        of_key, of_value = (torch.zeros_like(part, dtype=full) for part in (key, value))
        key_rows, key_columns = (key * scale).contiguous(), key.transpose(2, 3).contiguous()
        value_columns = value.transpose(2, 3).contiguous()
        if drop:
            drop.start()
            grad = grad * drop.scale
        for samples, rows in _score_blocks(query, key.shape[2]):
            queries, grads = query[samples, :, rows], grad[samples, :, rows].flatten(0, 1)
            weights = _block_weights(queries, key_columns[samples], of_samples(mask, samples))
            of_weights = torch.bmm(grads, value_columns[samples].flatten(0, 1))
            kept = weights
            if drop:
                dropped = drop.next(weights)
                kept, of_weights = weights.masked_fill(dropped, 0.0), of_weights.masked_fill_(dropped, 0.0)
            of_value[samples] += torch.bmm(kept.transpose(1, 2), grads).unflatten(0, (-1, heads))
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[samples, :, rows] = torch.bmm(of_scores, key_rows[samples].flatten(0, 1)).unflatten(0, (-1, heads))
            of_key[samples] += torch.bmm(of_scores.transpose(1, 2), queries.flatten(0, 1)).unflatten(0, (-1, heads))
        return of_query, (of_key * scale).to(key.dtype), of_value.to(value.dtype), None, None


def _score_blocks(query: Tensor, keys: int) -> Iterator[tuple[slice, slice]]:
    batch, heads, length, _ = query.shape
    return blocks(batch, length, max(1, _SCORES // max(1, heads * keys)))


def _block_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The context mapping of a block, `[samples · heads, rows, keys]`; key is `[samples, heads, head_dim, keys]`."""
    samples, heads, rows, head_dim = query.shape
    weights = query.new_empty(samples * heads, rows, key.shape[-1])
    weights.baddbmm_(query.flatten(0, 1), key.flatten(0, 1), beta=0, alpha=head_dim**-0.5)
    if mask is not None:
        weights.unflatten(0, (samples, heads)).masked_fill_(~mask, -torch.inf)
    return torch.softmax(weights, -1, out=weights)
