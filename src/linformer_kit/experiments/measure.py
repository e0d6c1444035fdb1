"""Measure time by interleaved repetitions, and peak memory in a fresh process."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
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
    start: Callable[[str], object] | None = None,
    done: Callable[[str], object] | None = None,
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
        start: Called with a case's name before each of its runs, warm-up included.
        done: Called with a case's name in each round, after its run if there is one.

    Returns:
        The seconds of each run of each case, at least one.
    """
    timings: Timings = {name: [] for name in cases}
    for name, run in cases.items():
        for _ in range(warmup):
            if start is not None:
                start(name)
            taken = _timed(run, device)
            if taken > seconds / 3:
                timings[name].append(taken)
                break
    for _ in range(repetitions):
        for name, run in cases.items():
            if not timings[name] or sum(timings[name]) + min(timings[name]) <= seconds:
                if start is not None:
                    start(name)
                timings[name].append(_timed(run, device))
            if done is not None:
                done(name)
    return timings


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep cores busy with processes that do nothing else, as in a shared container."""
    until_orphaned = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen([sys.executable, "-c", until_orphaned]))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _timed(run: Callable[[], object], device: torch.device) -> float:
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


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """A pool of spawned processes, which share no memory with this one."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=count, mp_context=spawn, initializer=_end_quietly, initargs=(os.getpid(),))


def _end_quietly(parent: int) -> None:
    """Make a worker exit silently on Ctrl-C, which the parent reports, and after the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a fresh process, without earlier allocations, and return its result.

    Raises:
        OutOfMemoryError: if the process was killed, as when memory runs out.
    """
    with fresh_processes(1) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Peak memory while a function runs, minus the memory in use before.

    Raises:
        InputError: as `PeakMemory`.
    """
    peak = PeakMemory(device)
    run()
    return peak.bytes_so_far()


class PeakMemory:
    """Peak memory since it was made, minus the memory in use then.

    On a CPU this is the resident set of the process: measure in a fresh process, and amounts much larger than a few MB.
    On an accelerator it is the allocated memory.

    Args:
        device: Device of the tensors.

    Raises:
        InputError: for a CPU on a system that does not report resident memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        synchronize(device)
        if device.type == "cpu":
            self._before = _reset_resident_peak()
        else:
            torch.accelerator.reset_peak_memory_stats(device)
            self._before = torch.accelerator.memory_allocated(device)

    def bytes_so_far(self) -> int:
        """The peak so far, in bytes."""
        synchronize(self._device)
        peak = most_bytes(self._device)
        assert peak is not None
        return max(0, peak - self._before)


def _reset_resident_peak() -> int:
    """Return free memory to the system, reset the peak to the resident bytes, and return them."""
    if not os.access(_CLEAR_REFS, os.W_OK):
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
