"""Products with a weight and with E: through oneDNN where torch's default is slow, in float32 where the format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linformer_kit.operator.conditions import (
    is_ordinary,
    is_replaced,
    must_be_plain,
    needs_gradient,
)
from linformer_kit.operator.kernels.processor import Processor, onednn_linear

_ONEDNN_LEAST = 1 << 20  # multiplications; below, the overhead of the call exceeds the time it saves


def linear(
    inputs: Float[Tensor, "*rows columns"],
    weight: Float[Tensor, "out columns"],
    bias: Float[Tensor, "#out"] | None = None,
    *,
    gelu: bool = False,
) -> Float[Tensor, "*rows out"]:
    """X·Wᵀ + 1·b, or its exact GELU.

    In float32, uses oneDNN if torch's default, MKL, does not use AVX-512. In bfloat16 torch uses oneDNN itself, but
    adds the bias in a pass of its own; without gradients oneDNN adds it here, and applies GELU, within the product:
    with float32 4 to 8 % of a layer. In a format that the processor has no instructions for, computes in float32 and
    rounds once.
    """
    wide = widens(inputs, weight, bias)
    fast = wide or _suits_onednn(inputs, weight, bias)
    if fast and not needs_gradient(inputs, weight, bias):
        if wide:
            return linear(*in_float32(inputs, weight, bias), gelu=gelu).to(inputs.dtype)
        return onednn_linear(inputs, weight, bias, gelu=gelu)
    with_fast_gradients = fast and (wide or inputs.dtype == torch.float32)
    product = (_Linear.apply if with_fast_gradients else F.linear)(inputs, weight, bias)
    return F.gelu(product) if gelu else product


def apply_linear(
    module: nn.Module, inputs: Float[Tensor, "*rows columns"], *, gelu: bool = False
) -> Float[Tensor, "*rows out"]:
    """Apply a linear module, and GELU if asked for.

    A plain `nn.Linear` is applied by `linear`; other modules, and those with hooks, are called.
    """
    if must_be_plain() or type(module) is not nn.Linear or is_replaced(module):
        return F.gelu(module(inputs)) if gelu else module(inputs)
    return linear(inputs, module.weight, module.bias, gelu=gelu)


def apply_feed_forward(
    first: nn.Module, second: nn.Module, inputs: Float[Tensor, "*rows columns"]
) -> Float[Tensor, "*rows out"]:
    """second(GELU(first(inputs))) for two linear modules, called as by `apply_linear`.

    With gradients, and a plain second module, only the input of GELU is kept for the backward pass, which computes its
    output, as large, again: of a layer that is a quarter of all it would keep.
    """
    # A trace is checked without gradients: the same code, or it fails.
    if must_be_plain() or not needs_gradient(inputs, *first.parameters(), *second.parameters()):
        return apply_linear(second, apply_linear(first, inputs, gelu=True))
    hidden = apply_linear(first, inputs)
    if type(second) is not nn.Linear or is_replaced(second) or not is_ordinary(hidden):
        return apply_linear(second, F.gelu(hidden))
    return _GeluLinear.apply(hidden, second.weight, second.bias)


def compress(
    matrix: Float[Tensor, "*batch projected seq_len"], hidden: Float[Tensor, "batch seq_len embed"]
) -> Float[Tensor, "batch projected embed"]:
    """E·X of each sequence, with one E for all sequences or one for each.

    Uses `torch.bmm`, not `matrix @ hidden`, which copies hidden, transposed, to compute one product of all sequences.
    """
    if must_be_plain() or len(hidden) == 0:
        return matrix @ hidden
    if matrix.dim() == 2 and _suits_onednn(matrix, hidden[0].T):
        return torch.stack([linear(matrix, sequence.T) for sequence in hidden])
    return widened(lambda matrix, hidden: torch.bmm(matrix.expand(len(hidden), -1, -1), hidden), matrix, hidden)


def widened(function: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
    """function(*tensors); in a format that the processor has no instructions for, in float32 and rounded once."""
    if not widens(*tensors):
        return function(*tensors, **options)
    return function(*in_float32(*tensors), **options).to(tensors[0].dtype)


def widens(*tensors: Tensor | None) -> bool:
    """Whether products of these tensors are computed in float32: the processor lacks instructions for their format.

    There torch computes products in this format with one core and without vectors, or oneDNN emulates them; both take
    longer than float32 with its conversions (docs/speed.md), and round more often.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    # First: the processor cannot be asked in a trace.
    if given[0].device.type != "cpu" or must_be_plain() or torch.is_autocast_enabled("cpu"):
        return False
    dtype = given[0].dtype
    return not Processor.here().has_instructions(dtype) and all(
        tensor.dtype == dtype and is_ordinary(tensor) for tensor in given
    )


def in_float32(*tensors: Tensor | None) -> Iterator[Any]:
    """The tensors in float32; None stays None."""
    return (None if tensor is None else tensor.float() for tensor in tensors)


def _suits_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether the product is large, and faster by oneDNN: in float32 twice as fast on AMD's AVX-512."""
    return (
        inputs.device.type == "cpu"
        and not must_be_plain()
        and inputs.dtype == weight.dtype
        and (bias is not None or inputs.dtype == torch.float32)
        and Processor.here().prefers_onednn(inputs.dtype)
        and is_ordinary(inputs)
        and is_ordinary(weight)
        and inputs.dim() > 1
        and inputs.shape[-1] == weight.shape[1]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == inputs.dtype))
        and inputs.numel() * weight.shape[0] >= _ONEDNN_LEAST
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


class _Linear(torch.autograd.Function):
    """`linear` with gradients that are such products too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_inputs, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if of_weight else None, weight if of_inputs else None)
        return linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(grad, weight.T) if of_inputs else None,
            linear(rows.T, inputs.reshape(-1, inputs.shape[-1]).T) if of_weight else None,
            rows.sum(dim=0) if of_bias else None,
        )


class _GeluLinear(torch.autograd.Function):
    """GELU and a product, of which only the input of GELU is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return linear(F.gelu(hidden), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_hidden, of_weight, of_bias = ctx.needs_input_grad
        hidden_gradient = weight_gradient = None
        if of_weight:
            weight_gradient = linear(rows.T, F.gelu(hidden).reshape(-1, hidden.shape[-1]).T)
        if of_hidden:
            upstream = linear(grad, weight.T.to(grad.dtype))  # mixed precision has other weights
            if torch.is_grad_enabled() or not is_ordinary(grad):  # for second derivatives, or of `is_grads_batched`
                hidden_gradient = torch.ops.aten.gelu_backward(upstream, hidden)
            else:  # in place: new memory of that size costs 2 % of an update
                hidden_gradient = torch.ops.aten.gelu_backward.grad_input(upstream, hidden, grad_input=upstream)
        return hidden_gradient, weight_gradient, rows.sum(dim=0) if of_bias else None
