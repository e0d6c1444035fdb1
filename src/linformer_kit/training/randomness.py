"""The random generators of a process that a training shares with its caller."""

from __future__ import annotations

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
