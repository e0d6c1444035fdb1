"""Calls to the C library. Whether pages stay also depends on the system; docs/speed.md has the savings."""

from __future__ import annotations

from types import SimpleNamespace

from linformer_kit.training import memory


def test_the_gnu_library_is_told_to_keep_memory(monkeypatch):
    """The numbers of its parameters are those of malloc.h: no mappings of their own, no trimming, growth in large steps."""
    told = []
    library = SimpleNamespace(mallopt=lambda parameter, value: told.append((parameter, value)))
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    memory.keep_freed_memory()
    assert told == [(-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)]
