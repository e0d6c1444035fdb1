"""Names of torch that are not public: all that `operator` uses, tested with torch 2.13. A new torch is checked here."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and no values."""
    return tensor.device.type == "meta" or isinstance(tensor, FakeTensor)


def functorch_is_active() -> bool:
    """Whether code runs within a transformation of `torch.func`."""
    return torch._C._are_functorch_transforms_active()


def make_fx_is_active() -> bool:
    """Whether operations are recorded by `make_fx`."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def forward_mode_is_active() -> bool:
    """Whether code runs within `torch.autograd.forward_ad.dual_level`."""
    return forward_ad._current_level >= 0


def is_batch_of_gradients(tensor: Tensor) -> bool:
    """Whether a tensor is one of `is_grads_batched`."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def assert_when_run(condition: Tensor, message: str) -> None:
    """A check within a compiled program."""
    torch._assert_async(condition, message)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks of its own."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def has_global_hooks() -> bool:
    """Whether there are hooks on all modules."""
    return torch_modules._has_any_global_hook()


def formats_of_onednn() -> frozenset[torch.dtype]:
    """The number formats that oneDNN supports; none if torch was built without it."""
    onednn = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")):
        return frozenset()
    supported = {torch.float32: True, torch.bfloat16: onednn._is_mkldnn_bf16_supported()}
    supported[torch.float16] = onednn._is_mkldnn_fp16_supported()
    return frozenset(dtype for dtype, is_supported in supported.items() if is_supported)


def onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X·Wᵀ + 1·b by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
