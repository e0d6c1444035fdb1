"""What the processor can do, and which implementation of each operation is fastest there.

The choices are functions of what torch and the system report, so that they can be tested for other processors. Which
ones were measured: benchmarks/README.md.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# The capabilities, as torch names them, with which products in a number format are fast: on x86, then on ARM.
_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}


@dataclass(frozen=True)
class Processor:
    """What torch and the system report of a processor."""

    capabilities: Mapping[str, Any]  # `torch.cpu.get_capabilities()`; empty: not known
    vectors: str  # `torch.backends.cpu.get_cpu_capability()`, such as AVX2
    is_intel: bool
    has_mkl: bool
    onednn: frozenset[torch.dtype]  # formats that oneDNN supports; empty: torch without oneDNN

    @staticmethod
    @functools.cache
    def here() -> Processor:
        """The processor of this machine."""
        return Processor(
            capabilities=torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {},
            vectors=torch.backends.cpu.get_cpu_capability(),
            is_intel=_is_intel(),
            has_mkl=torch.backends.mkl.is_available(),
            onednn=_formats_of_onednn(),
        )

    @functools.cached_property
    def emulated(self) -> frozenset[torch.dtype]:
        """The number formats without instructions."""
        return frozenset(dtype for dtype in _INSTRUCTIONS if not self.has_instructions(dtype))

    @functools.cached_property
    def by_onednn(self) -> frozenset[torch.dtype]:
        """The number formats of which products with a bias are faster by oneDNN."""
        return frozenset(dtype for dtype in (torch.float32, torch.bfloat16) if self.prefers_onednn(dtype))

    def has_instructions(self, dtype: torch.dtype) -> bool:
        """Whether there are instructions for products in a number format, and oneDNN uses them.

        ONEDNN_MAX_CPU_ISA may disable instructions. True for processors that torch knows nothing about: there torch
        decides.
        """
        if dtype not in _INSTRUCTIONS or not self.capabilities:
            return True
        return dtype in self.onednn and any(self.capabilities.get(name) for name in _INSTRUCTIONS[dtype])

    @functools.cached_property
    def attends_by_products(self) -> bool:
        """Whether there are bfloat16 instructions that torch's flash attention does not use: those of AVX-512.

        With AMX, flash attention uses its tiles.
        """
        known = self.capabilities
        return bool(known.get("avx512_bf16")) and not known.get("amx_bf16") and torch.bfloat16 in self.onednn

    def prefers_onednn(self, dtype: torch.dtype) -> bool:
        """Whether products with a bias in a number format are faster by oneDNN.

        In float32 where MKL is slow, which uses AVX-512 on Intel's processors only.
        """
        if dtype == torch.float32:
            return self.vectors == "AVX512" and self.has_mkl and dtype in self.onednn and not self.is_intel
        return dtype == torch.bfloat16 and self.attends_by_products


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


def _formats_of_onednn() -> frozenset[torch.dtype]:
    """The number formats that oneDNN supports; none if torch was built without it."""
    onednn = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")):
        return frozenset()
    supported = {torch.float32: True, torch.bfloat16: onednn._is_mkldnn_bf16_supported()}
    supported[torch.float16] = onednn._is_mkldnn_fp16_supported()
    return frozenset(dtype for dtype, is_supported in supported.items() if is_supported)


def onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> Tensor:
    """X·Wᵀ + 1·b, or its exact GELU, in one product of oneDNN."""
    activation: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, *activation)
