"""Measure time by interleaved repetitions, and peak memory in a fresh process."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import torch

from linformer_cli.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_kit.environment import most_bytes, status_bytes

Name = TypeVar("Name", bound=Hashable)

_CLEAR_REFS = Path("/proc/self/clear_refs")  # proc(5)


def interleaved(
    cases: Mapping[Name, Callable[[], object]],
    *,
    device: torch.device,
    repetitions: int = 5,
    seconds: float = 10.0,
) -> dict[Name, list[float]]:
    """Time cases alternately, so that other load of the machine affects all of them equally.

    Every round runs each case once, and the first one is a warm-up: it counts only for a case with no time for another.

    Args:
        cases: Functions to run, by name.
        device: Their device; accelerators are synchronised.
        repetitions: Number of rounds after the warm-up.
        seconds: Time limit for one case in all rounds; a run that would exceed it is skipped.

    Returns:
        The seconds of each run of each case, at least one.
    """
    timings: dict[Name, list[float]] = {name: [] for name in cases}
    for _ in range(1 + repetitions):
        for name, run in cases.items():
            if sum(timings[name]) + min(timings[name], default=0) <= seconds:
                timings[name].append(_timed(run, device))
    return {name: runs[1:] or runs for name, runs in timings.items()}


def _timed(run: Callable[[], object], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def summary(runs: list[float]) -> dict[str, Any]:
    """Median, minimum and maximum in seconds, and number of runs."""
    return {"median_s": statistics.median(runs), "min_s": min(runs), "max_s": max(runs), "runs": len(runs)}


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a spawned process, without earlier allocations and with as many threads, and return its result.

    Raises:
        OutOfMemoryError: if the process was killed, as when memory runs out.
    """
    context = multiprocessing.get_context("spawn")
    threads = (torch.get_num_threads(),)
    # With one task the process ends after it, also if this one was killed.
    with ProcessPoolExecutor(1, context, _start_worker, threads, max_tasks_per_child=1) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None


def _start_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is reported by the parent


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Peak memory while a function runs, minus the memory in use before.

    On a CPU this is the resident set of the process: measure in a fresh process, and amounts much larger than a few MB.
    On an accelerator it is the allocated memory.

    Raises:
        InputError: for a CPU on a system that does not report resident memory.
    """
    _synchronize(device)
    if device.type == "cpu":
        before = _reset_resident_peak()
    else:
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
    run()
    _synchronize(device)
    return max(0, (most_bytes(device) or 0) - before)


def can_measure_memory(device: torch.device) -> bool:
    """Whether `peak_bytes` works: on an accelerator, and on Linux."""
    return device.type != "cpu" or os.access(_CLEAR_REFS, os.W_OK)


def _reset_resident_peak() -> int:
    """Return free memory to the system, reset the peak to the resident bytes, and return them.

    Freed memory that is still resident would be used again and not be counted.
    """
    if not can_measure_memory(torch.device("cpu")):
        raise InputError("memory: expected Linux (for the resident set in /proc) or an accelerator, got neither")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)
    _CLEAR_REFS.write_text("5")
    return status_bytes("VmRSS") or 0
