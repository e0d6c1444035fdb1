"""Faster operations: large products through oneDNN where torch's default is slow, attention in parts, and float32 for
formats that the processor has no instructions for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linformer_kit.operator.conditions import (
    has_global_hooks,
    has_hooks,
    is_exporting,
    is_ordinary,
    must_be_plain,
    needs_gradient,
)
from linformer_kit.operator.kernels.base import Kernels
from linformer_kit.operator.kernels.processor import Processor, onednn_linear
from linformer_kit.operator.kernels.softmax import attend_in_parts
from linformer_kit.operator.neighbours import Neighbours

_ONEDNN_LEAST = 1 << 20  # multiplications; below, the overhead of the call exceeds the time it saves


def choose(tensor: Tensor) -> Kernels:
    """The kernels for a forward pass that begins with a tensor like this: chosen at its door, and handed down."""
    device = tensor.device.type
    if must_be_plain() or not is_ordinary(tensor, device):
        return Kernels(exporting=is_exporting())
    return FastKernels(device)


class FastKernels(Kernels):
    """The fastest operations on a kind of device, for the modes of torch at the time (autocast, global hooks).

    In float32, oneDNN multiplies if torch's default, MKL, does not use AVX-512. In bfloat16 torch uses oneDNN itself,
    but adds the bias in a pass of its own; without gradients oneDNN adds it here, and applies GELU, within the product:
    with float32 4 to 8 % of a layer. In a format without instructions torch computes products with one core and without
    vectors, or oneDNN emulates them; both take longer than float32 with its conversions (docs/speed.md), and round more
    often.

    Args:
        device: `cpu`, `cuda` and so on.
    """

    is_plain = False

    def __init__(self, device: str) -> None:
        super().__init__()
        here, on_cpu = Processor.here(), device == "cpu"
        has_onednn = on_cpu and bool(torch.backends.mkldnn.enabled)
        autocast = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
        self.device = device
        self.autocast = torch.get_autocast_dtype(device) if autocast else None
        self.calls_modules = has_global_hooks()
        self.attends_by_products = has_onednn and here.attends_by_products
        # Formats of what is computed in float32, and of large products through oneDNN; none in mixed precision.
        is_pure = on_cpu and not autocast
        self.wide = here.emulated if is_pure else frozenset()
        self.onednn = here.by_onednn if is_pure and has_onednn else frozenset()

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False) -> Tensor:
        """X·Wᵀ + 1·b, or its exact GELU."""
        if self._is_special(inputs, weight.shape[0]):
            wide = self._widens(inputs, weight, bias)
            if wide or self._suits_onednn(inputs, weight, bias):
                if not needs_gradient(inputs, weight, bias):
                    if not wide:
                        return onednn_linear(inputs, weight, bias, gelu=gelu)
                    return self.linear(*in_float32(inputs, weight, bias), gelu=gelu).to(inputs.dtype)
                if wide or inputs.dtype == torch.float32:
                    product = _Linear.apply(self, inputs, weight, bias)
                    return F.gelu(product) if gelu else product
        product = F.linear(inputs, weight, bias)
        return F.gelu(product) if gelu else product

    def apply_linear(self, module: nn.Module, inputs: Tensor, *, gelu: bool = False) -> Tensor:
        """As in the base class; with `gelu`, GELU of it."""
        if type(module) is nn.Linear and self._is_special(inputs, module.weight.shape[0]) and self._applies(module):
            return self.linear(inputs, module.weight, module.bias, gelu=gelu)
        mapped = module(inputs)
        return F.gelu(mapped) if gelu else mapped

    def feed_forward(self, first: nn.Module, second: nn.Module, inputs: Tensor) -> Tensor:
        """As in the base class.

        With gradients, and a plain second module, only the input of GELU is kept for the backward pass, which computes
        its output, as large, again: of a layer that is a quarter of all it would keep.
        """
        if not torch.is_grad_enabled():
            return self.apply_linear(second, self.apply_linear(first, inputs, gelu=True))
        hidden = self.apply_linear(first, inputs)
        if self._applies(second) and is_ordinary(hidden) and needs_gradient(hidden, second.weight, second.bias):
            return _GeluLinear.apply(self, hidden, second.weight, second.bias)
        return self.apply_linear(second, F.gelu(hidden))

    def compress(self, matrix: Tensor, hidden: Tensor) -> Tensor:
        """E·X of each sequence, by `torch.bmm`: `matrix @ hidden` copies hidden, transposed, for one product of all."""
        if hidden.shape[0] == 0:
            return matrix @ hidden
        is_special = matrix.dim() == 2 and self._is_special(matrix, hidden.shape[2])
        if is_special and self._suits_onednn(matrix, hidden[0].T):
            return torch.stack([self.linear(matrix, sequence.T) for sequence in hidden])
        return self.widened(_compress, matrix, hidden)

    def widened(self, function: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
        """As in the base class."""
        if tensors[0].dtype not in self.wide or not self._widens(*tensors):
            return function(*tensors, **options)
        return function(*in_float32(*tensors), **options).to(tensors[0].dtype)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        neighbours: Neighbours | None = None,
        *,
        is_causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """As in the base class, part by part of the rows (`softmax`) with neighbours, or where products are faster."""
        by_products = self.prefers_products(query, neighbours, dropout)
        if neighbours is None and (is_causal or not by_products):
            options = {"mask": mask, "is_causal": is_causal, "dropout": dropout}
            return self.widened(super().attention, query, key, value, **options)
        tensors = [query, key, value] if neighbours is None else [query, key, value, neighbours.key, neighbours.value]
        if not self._suits_parts(tensors, dropout):
            return super().attention(query, key, value, mask, neighbours, dropout=dropout)
        wide = query.dtype in self.wide
        return attend_in_parts(tensors, mask, neighbours, dropout=dropout, by_products=by_products, wide=wide)

    def prefers_products(self, query: Tensor, neighbours: Neighbours | None, dropout: float) -> bool:
        """Whether batched products are faster than flash attention."""
        if neighbours is not None and dropout > 0 and self.device == "cpu":  # flash attention has no dropout there
            return True
        return self.attends_by_products and query.dtype == torch.bfloat16

    def _suits_parts(self, tensors: Sequence[Tensor], dropout: float) -> bool:
        """Whether these are ordinary tensors of one format, on a device with such kernels."""
        dtype = tensors[0].dtype
        return (
            (self.device == "cuda" or (self.device == "cpu" and 0 <= dropout < 1))
            and all(is_ordinary(tensor, self.device) and tensor.dtype == dtype for tensor in tensors)
            and self.autocast in (None, dtype)
        )

    def _applies(self, module: nn.Module) -> TypeGuard[nn.Linear]:
        """Whether a module is a plain `nn.Linear` that need not be called."""
        return type(module) is nn.Linear and not self.calls_modules and not has_hooks(module)

    def _is_special(self, inputs: Tensor, out: int) -> bool:
        """Whether a product is in a format that is widened, or large and in one of oneDNN's: two cheap questions."""
        dtype = inputs.dtype
        return dtype in self.wide or (dtype in self.onednn and inputs.numel() * out >= _ONEDNN_LEAST)

    def _widens(self, *tensors: Tensor | None) -> bool:
        """Whether products of these tensors are computed in float32."""
        given = [tensor for tensor in tensors if tensor is not None]
        dtype = given[0].dtype
        return dtype in self.wide and all(tensor.dtype == dtype and is_ordinary(tensor) for tensor in given)

    def _suits_onednn(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        """Whether a special product is faster by oneDNN: in float32 twice as fast on AMD's AVX-512."""
        return (
            inputs.dtype in self.onednn
            and inputs.dtype == weight.dtype
            and (inputs.dtype == torch.float32 or bias is not None)
            and is_ordinary(inputs)
            and is_ordinary(weight)
            and inputs.dim() > 1
            and inputs.shape[-1] == weight.shape[1]
            and (bias is None or (bias.shape == weight.shape[:1] and bias.dtype == inputs.dtype))
        )


def _compress(matrix: Tensor, hidden: Tensor) -> Tensor:
    """E·X of each sequence; `expand` stands inside what is widened, so that the gradient of E is summed in float32."""
    return torch.bmm(matrix.expand(hidden.shape[0], -1, -1), hidden)


def in_float32(*tensors: Tensor | None) -> list[Any]:
    """The tensors in float32; None stays None."""
    return [None if tensor is None else tensor.float() for tensor in tensors]


class _Linear(torch.autograd.Function):
    """`linear` with gradients that are such products too."""

    @staticmethod
    def forward(ctx: Any, kernels: FastKernels, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        _, inputs_need, weight_needs, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if weight_needs else None, weight if inputs_need else None)
        return kernels.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        rows, linear = grad.reshape(-1, grad.shape[-1]), choose(grad).linear
        _, inputs_need, weight_needs, bias_needs = ctx.needs_input_grad
        return (
            None,
            linear(grad, weight.T) if inputs_need else None,
            linear(rows.T, inputs.reshape(-1, inputs.shape[-1]).T) if weight_needs else None,
            rows.sum(dim=0) if bias_needs else None,
        )


class _GeluLinear(torch.autograd.Function):
    """GELU and a product, of which only the input of GELU is kept."""

    @staticmethod
    def forward(ctx: Any, kernels: FastKernels, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return kernels.linear(F.gelu(hidden), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        rows, linear = grad.reshape(-1, grad.shape[-1]), choose(grad).linear
        _, hidden_needs, weight_needs, bias_needs = ctx.needs_input_grad
        hidden_gradient = weight_gradient = None
        if weight_needs:
            transformed = F.gelu(hidden).reshape(-1, hidden.shape[-1])
            weight_gradient = linear(rows.T, transformed.T.to(grad.dtype))
        if hidden_needs:  # in mixed precision weights, and what the first module returns, may have other formats
            upstream = linear(grad, weight.T.to(grad.dtype)).to(hidden.dtype)
            if torch.is_grad_enabled() or not is_ordinary(grad):  # for second derivatives, or of `is_grads_batched`
                hidden_gradient = torch.ops.aten.gelu_backward(upstream, hidden)
            else:  # in place: new memory of that size costs 2 % of an update
                hidden_gradient = torch.ops.aten.gelu_backward.grad_input(upstream, hidden, grad_input=upstream)
        return None, hidden_gradient, weight_gradient, rows.sum(dim=0) if bias_needs else None
