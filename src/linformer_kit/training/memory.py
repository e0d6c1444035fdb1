"""Memory of a process that trains."""

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
    """The most that this process has held so far: resident on a CPU, given out on an accelerator; None if unknown."""
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device)
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int | None:
    """What Linux says of this process's memory, under one of the names of proc(5); None elsewhere."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text() if _STATUS.exists() else "", flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def keep_freed_memory() -> None:
    """Let freed memory stay with this process, for the next tensor of its size, until the process ends.

    Otherwise each large activation of each update is a new mapping, whose pages the system hands out one by one, filled
    with zeros: a third of the time of a small update (docs/speed.md). Does nothing without the GNU C library.

    It changes malloc for the whole process, so only commands call it, and processes that are started for one training:
    a library function leaves the process of its caller as it was.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_TOP_PAD, 64 << 20)
