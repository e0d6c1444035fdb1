"""Processes that train together, as torchrun starts them, and what they leave behind."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
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
    """Register `_end`, once."""
    atexit.register(_end)


def _end() -> None:
    """Before Python waits for daemons: data workers take no SIGTERM (`stopping`), and a forked one may hang in a lock.

    Threads of a process group that is still there may abort the process.
    """
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
