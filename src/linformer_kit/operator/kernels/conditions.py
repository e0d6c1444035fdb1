"""Conditions for using the optimised kernels: the processor, the kind of tensor, tracing, and `plain`."""

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

from linformer_kit.operator.values import is_transformed

_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Within it no optimised kernel runs, only the operations of the equations: to compare results, or to debug.

    For the thread that it is entered in. A backward pass through checkpoints belongs inside as well.
    """
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def must_be_plain() -> bool:
    """Whether `plain` is active, or the code is being traced, compiled or transformed (`torch.func`)."""
    return is_transformed() or forward_ad._current_level >= 0 or _PLAIN.get()


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is a plain CPU tensor: no subclass, no functorch batch."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


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
