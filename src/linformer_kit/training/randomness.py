"""The random generators of a process that a training shares with its caller."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch by numbers, of which other ones give independent streams."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Use kernels that sum in a fixed order only, where that is wanted; afterwards the settings are as they were.

    cuBLAS reads its own when it is first used, so what a process computes on a GPU before counts.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextmanager
def callers_random_state() -> Iterator[None]:
    """Give the global generators of Python, numpy and torch back as they were, whatever was seeded and drawn inside.

    Otherwise a program that trains twice with one seed would draw the same numbers after each training. Of CUDA devices
    the current one counts, if it is in use already.
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
