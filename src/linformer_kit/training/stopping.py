"""Ctrl-C and SIGTERM while a model trains: a wish that the trainer grants after the update under way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 1.0


class StopRequest:
    """Whether somebody has asked to stop.

    Attributes:
        signal: The number of the signal, 0 while there was none.
    """

    signal = 0


_listening: list[StopRequest] = []
_mask: set[Any] = set()  # what this process blocks anyway, while it forks


def _before_fork() -> None:
    """Block the signals, which the child inherits; whatever handlers torch gives its workers come too late then."""
    global _mask
    if _listening:
        _mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    if _listening:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Take the signals down as a wish instead of dying of them; a second Ctrl-C ends the process as usual.

    A launcher passes on what its processes have had already, so what comes again within a second, and every other
    SIGTERM, says nothing new. Processes that are forked meanwhile, data workers above all, never hear of either: the
    death of one would end the training at once. They end with their loader, and the last ones with this process.

    What a process ignores, one in the background say, it goes on ignoring. Outside the main thread, where Python hears
    no signals, nobody can ask.
    """
    request, asked = StopRequest(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def take_down(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not request.signal:
            request.signal, asked = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > asked + _AGAIN_SECONDS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, take_down) for number in heard}
    _listening.append(request)
    try:
        yield request
    finally:
        _listening.remove(request)
        for number, handler in before.items():
            signal.signal(number, handler)
