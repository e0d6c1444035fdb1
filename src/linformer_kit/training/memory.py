"""Memory of a training process."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import torch

# Parameters of mallopt, of the GNU C library (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4

_STATUS = Path("/proc/self/status")


def most_bytes(device: torch.device) -> int | None:
    """Peak memory of this process: resident memory on a CPU, allocated memory on an accelerator; None if unknown."""
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device)
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int | None:
    """A memory value of this process from /proc/self/status, by its name in proc(5), in bytes; None if not on Linux."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text() if _STATUS.exists() else "", flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else None


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
