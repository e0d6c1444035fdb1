"""Honest measurements: interleaved repetitions, and peak memory in a fresh process."""

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

from linformer_kit.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_kit.training.memory import status_bytes

Timings = dict[str, list[float]]  # seconds of each run, by name


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
    """Time cases in turn, so that what else the machine does falls on all alike.

    Every round runs each case once. A case that has used up its seconds sits out the rounds that follow, and one whose
    first run alone took more than a third of them is not warmed up: that run counts.

    Args:
        cases: What to run, by name.
        device: Where it runs; an accelerator is waited for.
        repetitions: Rounds.
        warmup: Runs of each case before the first round.
        seconds: Time for one case in all rounds.
        start: Called with a case's name before each of its runs, the warm-up's too.
        done: Called with a case's name in each round, after its run if it has one.

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


def _timed(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for an accelerator; a CPU is always done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def summary(runs: list[float]) -> dict[str, Any]:
    """Median, least, most and number of runs, in seconds."""
    return {"median_s": statistics.median(runs), "min_s": min(runs), "max_s": max(runs), "runs": len(runs)}


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """Processes that share nothing with this one."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=count, mp_context=spawn, initializer=_end_quietly, initargs=(os.getpid(),))


def _end_quietly(parent: int) -> None:
    """With Ctrl-C, without a word, as it reaches the parent too, which speaks; and after a parent that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, where nothing has been allocated before.

    Raises:
        OutOfMemoryError: if the process was killed, which is how memory runs out.
    """
    with fresh_processes(1) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Highest memory while a function runs, less what was in use before.

    On a CPU this is the resident set of the process, so measure in a fresh one and where it is large beside a few MB;
    on an accelerator, what its allocator gave out.
    """
    synchronize(device)
    if device.type == "cpu":
        before, after = _resident_peak(run)
        return max(0, after - before)
    torch.accelerator.reset_peak_memory_stats(device)
    before = torch.accelerator.memory_allocated(device)
    run()
    synchronize(device)
    return torch.accelerator.max_memory_allocated(device) - before


def _resident_peak(run: Callable[[], object]) -> tuple[int, int]:
    """Resident bytes before, and the highest while a function runs."""
    _give_back_free_memory()
    before = status_bytes("VmRSS")
    if before is None:
        raise InputError("memory: expected Linux, whose /proc tells the resident set, or an accelerator")
    Path("/proc/self/clear_refs").write_text("5")  # sets the highest back to the present
    run()
    after = status_bytes("VmHWM")
    assert after is not None
    return before, after


def _give_back_free_memory() -> None:
    """Else what was freed before, and is resident still, is used again and not counted."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)
