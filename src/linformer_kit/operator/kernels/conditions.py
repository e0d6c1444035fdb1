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


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is a plain CPU tensor: no subclass, no functorch batch."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


@functools.cache
def bfloat16_in_blocks() -> bool:
    """Whether the processor has bfloat16 instructions that torch's flash attention does not use.

    Measured with AVX-512. On processors with AMX, flash attention uses the AMX tiles.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16") and onednn_has_bfloat16()


@functools.cache
def onednn_is_faster() -> bool:
    """Whether MKL is slow in float32: it uses AVX-512 on Intel's processors only."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and has_onednn()
        and not _is_intel()
    )


def has_onednn() -> bool:
    """Whether torch was built with oneDNN and its operator can be called directly."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN supports bfloat16; ONEDNN_MAX_CPU_ISA may disable instructions of the processor."""
    return has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()
