"""What a training sets for its whole process: the group of processes, random generators, memory."""

from __future__ import annotations

import atexit
import ctypes
import logging
import multiprocessing
import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
from accelerate import PartialState
from transformers import set_seed

from linformer_cli.errors import InputError
from linformer_kit.report.environment import device_of

logger = logging.getLogger(__name__)

# Parameters of mallopt, of the GNU C library (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def start_processes(name: str | None, *, timeout: float) -> PartialState:
    """Initialise the process group, if there are several processes and no group yet; it is destroyed at exit.

    Args:
        name: Name of the device, for several processes without an index; None: the accelerator if there is one.
        timeout: Seconds that a process waits for another one before it fails.

    Returns:
        This process: its device, its rank and the number of processes.

    Raises:
        InputError: for a device that is not available.
    """
    device = device_of(name)
    process = PartialState(cpu=device.type == "cpu", timeout=timedelta(seconds=timeout))
    atexit.unregister(_end)
    atexit.register(_end)
    if process.num_processes > 1:
        if name is not None and ":" in name:
            raise InputError(f"device: expected one without an index for several processes, got {name}")
        return process
    process.device = device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if name is None and (devices := torch.accelerator.device_count()) > 1:
        logger.warning(
            "one of %s devices is used; `torchrun --nproc-per-node %s -m linformer_kit` uses all", devices, devices
        )
    return process


def _end() -> None:
    """Kill data workers and destroy the process group, before Python waits for daemon processes at exit.

    Workers ignore SIGTERM, and a forked one may hang in a lock. Threads of a live group may abort Python.
    """
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch; different numbers give independent streams."""
    set_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


@contextmanager
def callers_random_state() -> Iterator[None]:
    """Restore the global generators of Python, numpy and torch afterwards, on the CPU and the current CUDA device.

    Otherwise a program that trains twice with one seed would draw the same numbers after each training.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


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
