"""Processes that train together, as torchrun starts them, and what they leave behind."""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing
from datetime import timedelta

import torch
from accelerate import PartialState

logger = logging.getLogger(__name__)


def start_processes(*, cpu: bool, timeout: float) -> PartialState:
    """Make the process group, if there are several processes and none is there; it is ended with the process.

    Args:
        cpu: Whether to compute on the CPU although there may be an accelerator.
        timeout: Seconds after which a process that waits for another one gives up.

    Returns:
        This process: its device, its rank and how many there are.
    """
    cpu = cpu or not torch.accelerator.is_available()
    process = PartialState(cpu=cpu, timeout=timedelta(seconds=timeout))
    _end_with_process()
    if process.num_processes == 1 and (devices := torch.accelerator.device_count()) > 1 and not cpu:
        logger.warning(
            "one of %s devices is used; `torchrun --nproc-per-node %s -m linformer_kit` uses all", devices, devices
        )
    return process


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
