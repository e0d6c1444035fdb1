"""Conditions for reading the values of a tensor, not only its shape; every check of values uses them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_transformed() -> bool:
    """Whether code is being compiled, exported, traced or transformed (`torch.func`)."""
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None  # make_fx
    )


def has_values(tensor: Tensor) -> bool:
    """Whether code may depend on the values of a tensor: not in a transformation, nor for tensors without values.

    On an accelerator, reading values waits for all queued work.
    """
    return not (
        is_transformed()
        or tensor.device.type == "meta"
        or isinstance(tensor, FakeTensor)
        or (tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def require_in_trace(condition: Tensor, message: str) -> None:
    """Check a condition when compiled code runs, with a RuntimeError if it fails; outside compilation do nothing."""
    if torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        torch._assert_async(condition, message)


def values_are_cheap(tensor: Tensor) -> bool:
    """Whether values may be read and are in CPU memory, so that a check of them costs almost nothing."""
    return tensor.device.type == "cpu" and has_values(tensor)
