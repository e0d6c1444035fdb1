"""Distributed processes, as torchrun starts them: set-up and clean-up."""

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
    """Initialise the process group, if there are several processes and no group yet; it is destroyed at exit.

    Args:
        cpu: Whether to use the CPU even if there is an accelerator.
        timeout: Seconds that a process waits for another one before it fails.

    Returns:
        This process: its device, its rank and the number of processes.
    """
    cpu = cpu or not torch.accelerator.is_available()
    process = PartialState(cpu=cpu, timeout=timedelta(seconds=timeout))
    _end_with_process()
    if process.num_processes == 1 and cpu != (process.device.type == "cpu"):  # the device of an earlier training
        process.device = torch.device("cpu") if cpu else process.default_device
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
    """Kill data workers and destroy the process group, before Python waits for daemon processes at exit.

    Workers block SIGTERM (`stopping`), and a forked one may hang in a lock. Threads of a live group may abort Python.
    """
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
