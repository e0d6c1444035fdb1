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


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Take the signals down as a wish instead of dying of them; a second Ctrl-C ends the process as usual.

    A launcher passes on what its processes have had already, so what comes again within a second, and every other
    SIGTERM, says nothing new. Data workers leave it to the process that they work for.

    What a process ignores, one in the background say, it goes on ignoring. Outside the main thread, where Python hears
    no signals, nobody can ask.
    """
    request, owner, asked = StopRequest(), os.getpid(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def take_down(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != owner:  # a data worker, whose death would end the training at once
            return
        if not request.signal:
            request.signal, asked = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > asked + _AGAIN_SECONDS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, take_down) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
