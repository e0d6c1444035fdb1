"""Conditions for using the optimised kernels: the processor, the kind of tensor, tracing, and `plain`."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from linformer_kit.operator.values import is_transformed

_PLAIN = contextvars.ContextVar("plain", default=False)
# The capabilities, as torch names them, with which products in a number format are fast: on x86, then on ARM.
_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}


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
    capabilities = _capabilities()
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16") and onednn_has(torch.bfloat16)


def widens(*tensors: Tensor | None) -> bool:
    """Whether products of these tensors are computed in float32: the processor lacks instructions for their format.

    There torch computes products in this format with one core and without vectors, or oneDNN emulates them; both take
    longer than float32 with its conversions (docs/speed.md), and round more often.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    dtype = given[0].dtype
    return (
        dtype in _INSTRUCTIONS
        and all(tensor.dtype == dtype and is_ordinary(tensor) for tensor in given)
        and not has_instructions(dtype)
        and not must_be_plain()
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def has_instructions(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for products in a number format, and torch uses them.

    True for processors that torch knows nothing about: there torch decides.
    """
    capabilities = _capabilities()
    if dtype not in _INSTRUCTIONS or not capabilities:
        return True
    return any(capabilities.get(name) for name in _INSTRUCTIONS[dtype]) and onednn_has(dtype)


def in_float32(*tensors: Tensor | None) -> Iterator[Any]:
    """The tensors in float32; None stays None."""
    return (None if tensor is None else tensor.float() for tensor in tensors)


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


def onednn_has(dtype: torch.dtype) -> bool:
    """Whether oneDNN supports bfloat16 or float16; ONEDNN_MAX_CPU_ISA may disable instructions of the processor."""
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    return has_onednn() and bool(getattr(torch.ops.mkldnn, name)())


def _capabilities() -> Mapping[str, Any]:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()
