"""Freed memory stays: the pages of a large tensor are there for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch
from linformer_kit.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    torch.ones(32 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(32 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_pages_are_not_asked_for_again():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", CODE, how], check=True, capture_output=True, text=True).stdout)
        for how in ("keep", "give back")
    }
    assert faults["keep"] < faults["give back"] / 2  # the system may take back what nobody has used for a while


def test_other_libraries_are_left_alone(monkeypatch):
    from linformer_kit.training import memory

    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("musl", ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", None)  # calling it would fail
    memory.keep_freed_memory()
