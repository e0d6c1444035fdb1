"""Ctrl-C and SIGTERM during training: recorded as a request to stop after the current update."""

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
    """A request to stop.

    Attributes:
        signal: Number of the signal; 0: none was received.
    """

    signal = 0


_listening: list[StopRequest] = []
_mask: set[Any] = set()  # signal mask of this process before the fork


def _before_fork() -> None:
    """Block the signals; the child inherits this mask, so handlers that torch installs in its workers do not run."""
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
    """Record the signals as a request to stop instead of ending the process; a second Ctrl-C ends it as usual.

    Launchers forward signals that their processes have received already, so repetitions within a second, and every
    further SIGTERM, are ignored. Processes forked meanwhile, such as data workers, block both signals: the end of one
    would end the training at once. They end with their data loader, at the latest with this process.

    Signals that the process ignores, as background processes do, stay ignored. Outside the main thread Python receives
    no signals, so the request is never set.
    """
    request, asked = StopRequest(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def record(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not request.signal:
            request.signal, asked = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > asked + _AGAIN_SECONDS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, record) for number in handled}
    _listening.append(request)
    try:
        yield request
    finally:
        _listening.remove(request)
        for number, handler in before.items():
            signal.signal(number, handler)
