"""When a faster way may be taken: what the machine has, and whether anybody could tell the difference."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import platform
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules

from linformer_kit.operator.values import is_transformed

_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Within it everything runs the plain way, as written in the equations: to compare, or to look for an error.

    For the thread that it is entered in. A backward pass through checkpoints belongs inside as well.
    """
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def must_be_plain() -> bool:
    """Whether somebody asked for it, or the code runs to be traced, compiled or transformed, and not for its result."""
    return is_transformed() or forward_ad._current_level >= 0 or _PLAIN.get()


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is just numbers on a CPU, and no subclass and no batch of tensors with a mind of its own."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks of its own, or another `forward` in the place of its class's."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def is_replaced(module: nn.Module) -> bool:
    """Whether a module must be called to run what was attached to it: hooks, those for all modules included."""
    return bool(has_hooks(module) or torch_modules._has_any_global_hook())


_KNOWN = ("torch.nn.modules.", "transformers.", "linformer_kit.")


def may_need_whole(module: nn.Module) -> bool:
    """Whether a module may keep its input or mix tokens: it has hooks, or a class from outside the known packages."""
    return is_replaced(module) or not type(module).__module__.startswith(_KNOWN)


@functools.cache
def bfloat16_in_blocks() -> bool:
    """Whether products of bfloat16 have instructions here, and flash attention does not use them.

    Measured with AVX-512's. With matrix tiles (AMX) torch's flash attention uses those.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16") and onednn_has_bfloat16()


@functools.cache
def onednn_is_faster() -> bool:
    """Whether MKL takes its slow path in float32: it uses AVX-512 on Intel's processors only."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and has_onednn()
        and not _is_intel()
    )


def has_onednn() -> bool:
    """Whether torch was built with oneDNN and lets it be asked directly."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16; ONEDNN_MAX_CPU_ISA may forbid what the processor has."""
    return has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()
