"""The products of the operator as fast as the machine allows: the plain ones, or faster ways to the same numbers.

Which one runs is decided here by device, dtype and shape alone, each for a measured reason (docs/speed.md); results
stay within the rounding of the dtype. A trace, an export, a compiled or a transformed function (`torch.func`) always
gets the plain form.

Axes as in `functional`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as torch_modules

_BLOCK_TOKENS = 512  # fewer, and every block reads the weights anew for too little work
_BLOCK_ELEMENTS = 3 << 19  # of the widest activation of a block: with its neighbours it stays in the cache
_SCORES = 3 << 20  # elements of a block of the context mapping, likewise
_ONEDNN_LEAST = 1 << 20  # multiplications; below, the call itself takes longer than it saves


_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Within it everything runs the plain way, as written in the equations: to compare, or to look for an error."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def linear(
    inputs: Float[Tensor, "*rows columns"],
    weight: Float[Tensor, "out columns"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*rows out"]:
    """X·Wᵀ + 1·b, in float32 through oneDNN where torch's default, MKL, leaves AVX-512 unused."""
    if not _suits_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (inputs, weight, bias)
    ):
        return _OneDNNLinear.apply(inputs, weight, bias)
    return _onednn_linear(inputs, weight, bias)


def apply_linear(module: nn.Module, inputs: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows out"]:
    """A linear map by its module: by `linear` if it is a plain one; whatever replaces or watches it, runs."""
    if type(module) is not nn.Linear or hooked(module):
        return module(inputs)
    return linear(inputs, module.weight, module.bias)


def compress(
    matrix: Float[Tensor, "projected seq_len"], hidden: Float[Tensor, "batch seq_len embed"]
) -> Float[Tensor, "batch projected embed"]:
    """E·X of each sequence."""
    if hidden.shape[0] and _suits_onednn(matrix, hidden[0].T):
        return torch.stack([linear(matrix, sequence.T) for sequence in hidden])
    # Not `matrix @ hidden`, which copies hidden, transposed, to make one product of all sequences.
    return torch.bmm(matrix.expand(hidden.shape[0], -1, -1), hidden)


def attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    mask: Bool[Tensor, "batch_or_1 1 1 keys"] | None = None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query_len head_dim"]:
    """softmax(Q·Kᵀ/√d)·V; never the whole query_len × keys matrix at once.

    On CPUs with bfloat16 instructions torch's flash attention does not use them for the products; two batched products
    with a softmax between, over blocks that stay in the cache, do. Keys are few here, so a block holds all of them.

    Args:
        query: Queries.
        key: Keys; read fastest as `arranged` leaves them.
        value: Values, likewise.
        mask: True where a key may be attended to; at least one in each sequence.
        dropout: Dropout on the weights.
    """
    if not _attends_in_blocks(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    drop = _Dropout(dropout, int(torch.randint(1 << 62, ()))) if dropout else None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        return _BlockAttention.apply(query, key, value, mask, drop)
    return _block_attention(query, key, value, mask, drop)


def arranged(
    key: Float[Tensor, "batch heads keys head_dim"], value: Float[Tensor, "batch heads keys head_dim"]
) -> tuple[Float[Tensor, "batch heads keys head_dim"], Float[Tensor, "batch heads keys head_dim"]]:
    """Keys and values laid out in memory for many calls of `attention` with them."""
    if _attends_in_blocks(key, key, value):
        return key.transpose(2, 3).contiguous().transpose(2, 3), value.contiguous()
    return key.contiguous(), value.contiguous()


def runs_in_blocks(module: nn.Module, hidden: Float[Tensor, "batch seq_len embed"], width: int) -> bool:
    """Whether a function of single tokens had better run over blocks of them, one after the other.

    In inference on a CPU: there the activations of a block stay in the cache, and only one block's take memory. Not
    where dropout draws or where hooks expect to see the whole.

    Args:
        module: What runs.
        hidden: Its input.
        width: Of its widest activation.
    """
    return (
        not _must_be_plain()
        and hidden.device.type == "cpu"
        and hidden.shape[:2].numel() > block_tokens(width)
        and not (module.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        and not any(hooked(part) for part in module.modules() if part is not module)
    )


def block_tokens(width: int) -> int:
    """Tokens in a block whose widest activation has this width."""
    return max(_BLOCK_TOKENS, _BLOCK_ELEMENTS // width)


def blocks(batch: int, length: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """Samples and positions of blocks that cover a batch, each of at most `tokens` tokens and about equally many.

    A block is a part of one sequence, or several whole ones.
    """
    samples = max(1, tokens // max(1, length))
    parts = -(-length // tokens)
    for start in range(0, batch, samples):
        for part in range(parts):
            yield slice(start, start + samples), slice(part * length // parts, (part + 1) * length // parts)


def hooked(module: nn.Module) -> bool:
    """Whether anybody listens to a module."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_modules._has_any_global_hook()
    )


def _must_be_plain() -> bool:
    """Whether somebody asked for it, or the code runs to be traced, compiled or transformed, and not for its result."""
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or _PLAIN.get()
    )


def _plain(tensor: Tensor) -> bool:
    """Whether a tensor is just numbers on a CPU and no subclass with a mind of its own."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"


def _suits_onednn(inputs: Tensor, weight: Tensor) -> bool:
    return (
        not _must_be_plain()
        and inputs.dtype == weight.dtype == torch.float32
        and _plain(inputs)
        and _plain(weight)
        and inputs.numel() * weight.shape[0] >= _ONEDNN_LEAST
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
        and _onednn_is_faster()
    )


@functools.cache
def _onednn_is_faster() -> bool:
    """Whether MKL takes its slow path: it uses AVX-512 on Intel's processors only."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and not _is_intel()
    )


def _is_intel() -> bool:
    information = Path("/proc/cpuinfo")
    return "Intel" in (information.read_text() if information.exists() else platform.processor())


def _onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """`linear` with gradients through the same library."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _onednn_linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(grad, weight.T) if of_inputs else None,
            linear(rows.T, inputs.flatten(0, -2).T) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


def _attends_in_blocks(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        not _must_be_plain()
        and query.dtype == key.dtype == value.dtype == torch.bfloat16
        and all(map(_plain, (query, key, value)))
        and bool(torch.backends.mkldnn.enabled)
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class _Dropout:
    """Which weights are dropped, block after block, and the same again for the same seed.

    torch draws a number for every weight, on one core. Here one 64-bit number serves four, so that the probability is a
    multiple of 2⁻¹⁶.
    """

    def __init__(self, probability: float, seed: int) -> None:
        self.dropped = round(probability * 2**16)
        self.scale = 2**16 / max(1, 2**16 - self.dropped)
        self.seed = seed
        self.generator = torch.Generator()

    def start(self) -> None:
        """Begin with the first block."""
        self.generator.manual_seed(self.seed)

    def next(self, weights: Tensor) -> Tensor:
        """True for the weights of the next block that are dropped."""
        words = torch.empty(-(-weights.numel() // 4), dtype=torch.int64)
        numbers = words.random_(-(2**63), None, generator=self.generator).view(torch.int16)
        return (numbers[: weights.numel()] < self.dropped - 2**15).view(weights.shape)


def _block_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, drop: _Dropout | None = None
) -> Tensor:
    """The context, `[batch, heads, query_len, head_dim]`, with the positions before the heads in memory."""
    batch, heads, length, _ = query.shape
    context = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    key, value = key.transpose(2, 3).contiguous(), value.contiguous()
    if drop:
        drop.start()
    for samples, rows in _score_blocks(query, key.shape[-1]):
        weights = _block_weights(query[samples, :, rows], key[samples], _of_samples(mask, samples))
        if drop:
            weights.masked_fill_(drop.next(weights), 0.0)
        context[samples, :, rows] = torch.bmm(weights, value[samples].flatten(0, 1)).unflatten(0, (-1, heads))
    return context.mul_(drop.scale) if drop else context


class _BlockAttention(torch.autograd.Function):
    """`_block_attention` with gradients; the weights, and which are dropped, are computed again instead of kept."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, drop: _Dropout | None
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.drop = drop
        return _block_attention(query, key, value, mask, drop)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mask = ctx.saved_tensors
        heads, scale, drop = query.shape[1], query.shape[-1] ** -0.5, ctx.drop
        of_query = torch.empty_like(query)
        # Sums over blocks in full precision.
        full = torch.promote_types(query.dtype, torch.float32)
        of_key, of_value = (torch.zeros(part.shape, dtype=full) for part in (key, value))
        key_rows, key_columns = (key * scale).contiguous(), key.transpose(2, 3).contiguous()
        value_columns = value.transpose(2, 3).contiguous()
        if drop:
            drop.start()
            grad = grad * drop.scale
        for samples, rows in _score_blocks(query, key.shape[2]):
            queries, grads = query[samples, :, rows], grad[samples, :, rows].flatten(0, 1)
            weights = _block_weights(queries, key_columns[samples], _of_samples(mask, samples))
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
    return blocks(batch, length, max(1, _SCORES // (heads * keys)))


def _of_samples(mask: Tensor | None, samples: slice) -> Tensor | None:
    return mask if mask is None or mask.shape[0] == 1 else mask[samples]


def _block_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The context mapping of a block, `[samples · heads, rows, keys]`; key is `[samples, heads, head_dim, keys]`."""
    samples, heads, rows, head_dim = query.shape
    weights = query.new_empty(samples * heads, rows, key.shape[-1])
    weights.baddbmm_(query.flatten(0, 1), key.flatten(0, 1), beta=0, alpha=head_dim**-0.5)
    if mask is not None:
        weights.unflatten(0, (samples, heads)).masked_fill_(~mask, -torch.inf)
    return torch.softmax(weights, -1, out=weights)
