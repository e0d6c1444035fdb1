"""Measure time by interleaved repetitions, and peak memory in a fresh process."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from linformer_kit.environment import status_bytes
from linformer_kit.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_kit.training.memory import most_bytes

Timings = dict[str, list[float]]  # seconds of each run, by name

_CLEAR_REFS = Path("/proc/self/clear_refs")  # proc(5)


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    *,
    device: torch.device,
    repetitions: int = 5,
    warmup: int = 1,
    seconds: float = 10.0,
    pause: float = 0.0,
) -> Timings:
    """Time cases alternately, so that other load of the machine affects all of them equally.

    Every round runs each case once. A case that has used up its seconds is skipped in later rounds. If the first run of
    a case takes more than a third of its seconds, that run counts and is not a warm-up.

    Args:
        cases: Functions to run, by name.
        device: Device of the functions; accelerators are synchronised.
        repetitions: Number of rounds.
        warmup: Runs of each case before the first round.
        seconds: Time limit for one case in all rounds.
        pause: Seconds to sleep before each run.

    Returns:
        The seconds of each run of each case, at least one.
    """
    timings: Timings = {name: [] for name in cases}
    for name, run in cases.items():
        for _ in range(warmup):
            taken = _timed(run, device, pause)
            if taken > seconds / 3:
                timings[name].append(taken)
                break
    for _ in range(repetitions):
        for name, run in cases.items():
            if not timings[name] or sum(timings[name]) + min(timings[name]) <= seconds:
                timings[name].append(_timed(run, device, pause))
    return timings


def _timed(run: Callable[[], object], device: torch.device, pause: float) -> float:
    time.sleep(pause)
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for an accelerator; does nothing for a CPU."""
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
    start = (os.getpid(), torch.get_num_threads())
    with ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_start_worker, initargs=start) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None


def _start_worker(parent: int, threads: int) -> None:
    """Make a worker exit silently on Ctrl-C, which the parent reports, and after the parent was killed."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Peak memory while a function runs, minus the memory in use before.

    On a CPU this is the resident set of the process: measure in a fresh process, and amounts much larger than a few MB.
    On an accelerator it is the allocated memory.

    Raises:
        InputError: for a CPU on a system that does not report resident memory.
    """
    synchronize(device)
    if device.type == "cpu":
        before = _reset_resident_peak()
    else:
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
    run()
    synchronize(device)
    peak = most_bytes(device)
    assert peak is not None
    return max(0, peak - before)


def can_measure_memory(device: torch.device) -> bool:
    """Whether `peak_bytes` works: on an accelerator, and on Linux."""
    return device.type != "cpu" or os.access(_CLEAR_REFS, os.W_OK)


def _reset_resident_peak() -> int:
    """Return free memory to the system, reset the peak to the resident bytes, and return them."""
    if not can_measure_memory(torch.device("cpu")):
        raise InputError("memory: expected Linux (for the resident set in /proc) or an accelerator, got neither")
    _give_back_free_memory()
    before = status_bytes("VmRSS")
    assert before is not None
    _CLEAR_REFS.write_text("5")  # resets the peak to the current value
    return before


def _give_back_free_memory() -> None:
    """Return free memory to the system; freed but still resident memory would be reused and not counted."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)
