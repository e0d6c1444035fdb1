"""Measurements: cases alternate, stay within their time budget, and reused freed memory counts."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch

from linformer_kit.analysis import measure
from linformer_kit.errors import InputError, OutOfMemoryError
from linformer_kit.training.memory import keep_freed_memory

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that the cases advance."""
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    return now


def case(clock, name, seconds, log):
    def run():
        clock[0] += seconds
        log.append(name)

    return run


def test_cases_take_turns_after_a_warm_up(clock):
    log = []
    cases = {name: case(clock, name, seconds, log) for name, seconds in (("a", 1.0), ("b", 2.0))}
    timings = measure.interleaved(cases, device=CPU, repetitions=3)
    assert log == ["a", "b"] + ["a", "b"] * 3
    assert timings == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_long_cases_run_less(clock):
    """Ten seconds are three runs of 3 s, and a first run of 4 s counts."""
    log = []
    cases = {name: case(clock, name, seconds, log) for name, seconds in (("three", 3.0), ("four", 4.0), ("age", 50.0))}
    timings = measure.interleaved(cases, device=CPU, repetitions=5, seconds=10.0)
    assert timings == {"three": [3.0] * 3, "four": [4.0] * 2, "age": [50.0]}


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read from /proc")
@pytest.mark.e2e
def test_what_was_freed_before_counts_again():
    assert 75_000_000 < measure.in_fresh_process(_taken_again) < 160_000_000


def test_memory_of_a_system_that_does_not_report_it(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_CLEAR_REFS", tmp_path / "none")
    expected = r"memory: expected Linux \(for the resident set in /proc\) or an accelerator, got neither"
    with pytest.raises(InputError, match=expected):
        measure.peak_bytes(list, CPU)


@pytest.mark.e2e
def test_a_process_that_is_killed_is_memory_that_ran_out():
    with pytest.raises(OutOfMemoryError, match="a process was killed, most likely because memory ran out"):
        measure.in_fresh_process(_killed)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _taken_again() -> int:
    """In a process that keeps what is freed, as trainings do, and where nothing else was freed before."""
    keep_freed_memory()
    pieces = [torch.ones(2_000_000 // 4) for _ in range(40)]
    keep = torch.ones(1000)  # above them on the heap
    del pieces
    taken = measure.peak_bytes(lambda: [torch.ones(2_000_000 // 4) for _ in range(40)], CPU)
    assert keep.sum() == 1000
    return taken
