"""Memory of a training process."""

from __future__ import annotations

import ctypes
import platform

import torch

from linformer_kit.environment import status_bytes

# Parameters of mallopt, of the GNU C library (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def most_bytes(device: torch.device) -> int | None:
    """Peak memory of this process: resident memory on a CPU, allocated memory on an accelerator; None if unknown."""
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device)
    return status_bytes("VmHWM")


def keep_freed_memory() -> None:
    """Keep freed memory in this process for later tensors, instead of returning it to the operating system.

    Otherwise each large activation of each update is a new mapping, whose pages the system allocates one by one and
    fills with zeros: a third of the time of a small update (docs/speed.md). Does nothing without the GNU C library.

    It changes malloc for the whole process, so only commands and processes started for one training call it; library
    functions do not.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_TOP_PAD, 64 << 20)
