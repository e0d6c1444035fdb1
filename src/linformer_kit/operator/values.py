"""Conditions for reading the values of a tensor, not only its shape; every check of values uses them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from linformer_cli.errors import InputError


def is_exporting() -> bool:
    """Whether code is being exported or traced: then the program must not depend on the lengths of the example."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def refuse_old_exporter() -> None:
    """Reject ONNX files made by tracing, which fail or differ for other lengths than that of the example.

    Raises:
        InputError: under `torch.onnx.export(..., dynamo=False)`.
    """
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
        raise InputError("torch.onnx.export: expected dynamo=True, or the command `linformer export`, got dynamo=False")


def is_transformed() -> bool:
    """Whether code is being compiled, exported, traced or transformed (`torch.func`)."""
    return (
        torch.compiler.is_compiling()  # or exporting
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None  # make_fx
    )


def has_values(tensor: Tensor) -> bool:
    """Whether code may depend on the values of a tensor: not in a transformation, nor for tensors without values.

    On an accelerator, reading values waits for all queued work.
    """
    if is_transformed() or tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
        return False
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def require_in_trace(condition: Tensor, message: str) -> None:
    """Check a condition when compiled code runs, with a RuntimeError if it fails; outside compilation do nothing."""
    if torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        torch._assert_async(condition, message)


def values_are_cheap(tensor: Tensor) -> bool:
    """Whether values may be read and are in CPU memory, so that a check of them costs almost nothing."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor) and not is_transformed()
