"""Products with a weight and with E, through oneDNN where torch's default is slow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linformer_kit.operator.hooks import is_replaced
from linformer_kit.operator.kernels.conditions import (
    bfloat16_in_blocks,
    is_ordinary,
    must_be_plain,
    onednn_is_faster,
)

_ONEDNN_LEAST = 1 << 20  # multiplications; below, the overhead of the call exceeds the time it saves


def linear(
    inputs: Float[Tensor, "*rows columns"],
    weight: Float[Tensor, "out columns"],
    bias: Float[Tensor, "#out"] | None = None,
) -> Float[Tensor, "*rows out"]:
    """X·Wᵀ + 1·b.

    In float32, uses oneDNN if torch's default, MKL, does not use AVX-512. In bfloat16, torch uses oneDNN itself, but
    writes the bias into the result first and adds it from there; without gradients this calls oneDNN directly.
    """
    if not _suits_onednn(inputs, weight, bias):
        return F.linear(inputs, weight, bias)
    if not _needs_gradients(inputs, weight, bias):
        return _onednn_linear(inputs, weight, bias)
    return (_OneDNNLinear.apply if inputs.dtype == torch.float32 else F.linear)(inputs, weight, bias)


def linear_gelu(
    inputs: Float[Tensor, "*rows columns"],
    weight: Float[Tensor, "out columns"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*rows out"]:
    """GELU(X·Wᵀ + 1·b), exact; without gradients it is fused into the product if `linear` would use oneDNN."""
    if not _suits_onednn(inputs, weight, bias) or _needs_gradients(inputs, weight, bias):
        return F.gelu(linear(inputs, weight, bias))
    return _onednn_linear(inputs, weight, bias, "gelu", "none")


def apply_linear(
    module: nn.Module, inputs: Float[Tensor, "*rows columns"], *, gelu: bool = False
) -> Float[Tensor, "*rows out"]:
    """Apply a linear module, and GELU if requested.

    Uses `linear` or `linear_gelu` for a plain `nn.Linear`; other modules, and those with hooks, are called.
    """
    if must_be_plain() or type(module) is not nn.Linear or is_replaced(module):
        return F.gelu(module(inputs)) if gelu else module(inputs)
    return (linear_gelu if gelu else linear)(inputs, module.weight, module.bias)


def compress(
    matrix: Float[Tensor, "*batch projected seq_len"], hidden: Float[Tensor, "batch seq_len embed"]
) -> Float[Tensor, "batch projected embed"]:
    """E·X of each sequence, with one E for all sequences or one for each.

    Uses `torch.bmm`, not `matrix @ hidden`, which copies hidden, transposed, to compute one product of all sequences.
    """
    if must_be_plain() or matrix.dim() > 2 or len(hidden) == 0:
        return matrix @ hidden
    if _suits_onednn(matrix, hidden[0].T):
        return torch.stack([linear(matrix, sequence.T) for sequence in hidden])
    if _needs_gradients(matrix, hidden):
        return _Compress.apply(matrix, hidden) if _is_one_format(matrix, hidden) else matrix @ hidden
    return torch.bmm(matrix.expand(len(hidden), -1, -1), hidden)


def _is_one_format(matrix: Tensor, hidden: Tensor) -> bool:
    """Whether matrix and hidden are plain tensors of one dtype, without autocast."""
    return (
        matrix.dtype == hidden.dtype
        and is_ordinary(matrix)
        and is_ordinary(hidden)
        and not torch.is_autocast_enabled("cpu")
    )


class _Compress(torch.autograd.Function):
    """E·X that saves X itself for the backward pass, and rounds the gradient of E once for all sequences."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, hidden: Tensor) -> Tensor:
        of_matrix, of_hidden = ctx.needs_input_grad
        ctx.save_for_backward(matrix if of_hidden else None, hidden if of_matrix else None)
        return torch.bmm(matrix.expand(len(hidden), -1, -1), hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        matrix, hidden = ctx.saved_tensors
        of_matrix, of_hidden = ctx.needs_input_grad
        return (
            torch.einsum("bkd,bnd->kn", grad, hidden) if of_matrix else None,
            torch.bmm(matrix.T.expand(len(grad), -1, -1), grad) if of_hidden else None,
        )


def _suits_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        not must_be_plain()
        and inputs.dtype == weight.dtype
        and (
            (inputs.dtype == torch.float32 and onednn_is_faster())
            or (inputs.dtype == torch.bfloat16 and bias is not None and bfloat16_in_blocks())
        )
        and is_ordinary(inputs)
        and is_ordinary(weight)
        and inputs.dim() > 1
        and inputs.shape[-1] == weight.shape[1]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == inputs.dtype))
        and inputs.numel() * weight.shape[0] >= _ONEDNN_LEAST
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


def _needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _onednn_linear(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, activation, [], algorithm)


class _OneDNNLinear(torch.autograd.Function):
    """`linear` through oneDNN, with gradients through oneDNN too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_inputs, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if of_weight else None, weight if of_inputs else None)
        return _onednn_linear(inputs, weight, bias)

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
