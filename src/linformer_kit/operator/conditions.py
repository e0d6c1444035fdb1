"""What may be asked of tensors, modules and the running code before a value is read or a faster way is taken.

All names of torch that are not public and that `operator` uses are here and in `kernels.processor`, tested with torch
2.13. A new torch is checked there.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules

from linformer_cli.errors import InputError, check_input

_PLAIN = contextvars.ContextVar("plain", default=False)
_KNOWN = ("torch.nn.modules.", "transformers.", "linformer_kit.")


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Disable the optimised kernels and use plain operations only: to compare results, or to debug.

    Applies to the current thread. With activation checkpointing, run the backward pass inside this context too.
    """
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def must_be_plain() -> bool:
    """Whether `plain` is active, or the code is being traced, compiled or transformed (`torch.func`)."""
    return is_transformed() or forward_ad._current_level >= 0 or _PLAIN.get()


def is_exporting() -> bool:
    """Whether code is being exported or traced: then the program must not depend on the lengths of the example."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def is_transformed() -> bool:
    """Whether code is being compiled, exported, traced or transformed (`torch.func`)."""
    return (
        torch.compiler.is_compiling()  # or exporting
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None  # `make_fx`
    )


def reject_old_exporter() -> None:
    """Reject ONNX files made by tracing, which fail or differ for other lengths than that of the example.

    Raises:
        InputError: under `torch.onnx.export(..., dynamo=False)`.
    """
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
        raise InputError("torch.onnx.export: expected dynamo=True, or the command `linformer export`, got dynamo=False")


def has_values(tensor: Tensor) -> bool:
    """Whether code may depend on the values of a tensor: not in a transformation, nor for tensors without values.

    On an accelerator, reading values waits for all queued work.
    """
    if is_transformed() or tensor.device.type == "meta" or isinstance(tensor, FakeTensor):
        return False
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def values_are_cheap(tensor: Tensor) -> bool:
    """Whether values may be read and are in CPU memory, so that a check of them costs almost nothing."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor) and not is_transformed()


def require(condition: Tensor, message: str) -> None:
    """Check what no later error would show; also on an accelerator, and in compiled code when it runs.

    Raises:
        InputError: with the message; a RuntimeError when compiled code runs.
    """
    if has_values(condition):
        if not condition:
            raise InputError(message)
    elif torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        torch._assert_async(condition, message)


def described(value: Any) -> str:
    """What was given, for errors: a tensor by its dtype and shape, anything else by its type."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def check_tensors(**given: Any) -> None:
    """Reject lists, arrays of NumPy and the like; None is accepted."""
    for name, value in given.items():
        check_input(value is None or isinstance(value, Tensor), name, "a tensor", type(value).__name__)


def check_vectors(name: str, vectors: Any, width: int, weights: Tensor, *, added: bool = False) -> None:
    """Reject what is not `[batch, sequence, width]`, in floating point and with the dtype of the weights that meet it.

    What is `added` to weights may be narrower. Mixed precision converts others, and a subclass of tensors (shards) may.
    """
    if not (isinstance(vectors, Tensor) and vectors.is_floating_point() and vectors.shape[2:] == (width,)):
        raise InputError(f"{name}: expected floating point [batch, sequence, {width}], got {described(vectors)}")
    dtype = torch.promote_types(vectors.dtype, weights.dtype) if added else vectors.dtype
    if dtype != weights.dtype and type(weights) in (Tensor, nn.Parameter):
        converts = torch.is_autocast_enabled(vectors.device.type)
        check_input(converts, name, f"{weights.dtype}, as the weights are", vectors.dtype)


def is_ordinary(tensor: Tensor, device: str = "cpu") -> bool:
    """Whether a tensor is a plain tensor of a kind of device: no subclass, no functorch batch."""
    functorch = torch._C._functorch  # legacy: of `is_grads_batched`
    is_batched = functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == device and not is_batched


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient for any of them is to be computed."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has its own hooks, or a `forward` that replaces that of its class."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in module.__dict__


def has_global_hooks() -> bool:
    """Whether there are hooks on all modules, as profilers and debuggers have them."""
    return torch_modules._has_any_global_hook()


def may_need_whole(module: nn.Module) -> bool:
    """Whether a module may keep its input or mix tokens: it has hooks, or a class from outside the known packages."""
    return has_hooks(module) or not type(module).__module__.startswith(_KNOWN)
