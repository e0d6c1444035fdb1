"""Memory of a training on a CPU."""

from __future__ import annotations

import ctypes
import platform

# Parameters of mallopt, of the GNU C library (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let freed memory stay with this process, for the next tensor of its size, until the process ends.

    Otherwise each large activation of each update is a new mapping, whose pages the system hands out one by one, filled
    with zeros: a third of the time of a small update (docs/speed.md). Does nothing without the GNU C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_TOP_PAD, 64 << 20)
