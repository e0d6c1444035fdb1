"""The global random generators, which a training shares with its caller."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch; different numbers give independent streams."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Use deterministic kernels only, if wanted; the earlier settings are restored afterwards.

    cuBLAS reads CUBLAS_WORKSPACE_CONFIG at its first use, so it has no effect if the process used the GPU before.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        # `set_deterministic_debug_mode` would leave torch.compile's own setting as it was in the training.
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def callers_random_state() -> Iterator[None]:
    """Restore the state of the global generators of Python, numpy and torch afterwards.

    Otherwise a program that trains twice with one seed would draw the same numbers after each training. Of the CUDA
    devices, the current one is restored, if CUDA is initialised already.
    """
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    of_device = None if device is None else torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if device is not None and of_device is not None:
            torch.cuda.set_rng_state(of_device, device)
