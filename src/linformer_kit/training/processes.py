"""Processes that train together, as torchrun starts them."""

from __future__ import annotations

import atexit
import functools
from datetime import timedelta

import torch
from accelerate import PartialState


def start_processes(*, cpu: bool, backend: str | None, timeout: float) -> None:
    """Make the process group, if there are several processes and none is there; it is ended with the process.

    Args:
        cpu: Whether they compute on CPUs; transformers forgets the time-out then.
        backend: Of the group; None: accelerate's choice.
        timeout: Seconds after which a process that waits for another one gives up.
    """
    if cpu:
        PartialState(cpu=True, backend=backend, timeout=timedelta(seconds=timeout))
    _end_with_process()


@functools.cache
def _end_with_process() -> None:
    """Once: threads of a group that is still there at the end may abort the process."""
    atexit.register(lambda: torch.distributed.destroy_process_group() if torch.distributed.is_initialized() else None)
