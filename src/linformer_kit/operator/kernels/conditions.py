"""Conditions for using the optimised kernels besides the processor: the kind of tensor, tracing, and `plain`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from linformer_kit.operator.kernels.processor import Processor
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


def widens(*tensors: Tensor | None) -> bool:
    """Whether products of these tensors are computed in float32: the processor lacks instructions for their format.

    There torch computes products in this format with one core and without vectors, or oneDNN emulates them; both take
    longer than float32 with its conversions (docs/speed.md), and round more often.
    """
    if must_be_plain() or torch.is_autocast_enabled("cpu"):  # first: the processor cannot be asked in a trace
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    dtype = given[0].dtype
    return not Processor.here().has_instructions(dtype) and all(
        tensor.dtype == dtype and is_ordinary(tensor) for tensor in given
    )


def in_float32(*tensors: Tensor | None) -> Iterator[Any]:
    """The tensors in float32; None stays None."""
    return (None if tensor is None else tensor.float() for tensor in tensors)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient for any of them is to be computed."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
