"""Signals that ask a command to stop, which then saves what it has."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 1.0


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Record the first signal to stop in a list, instead of ending the process; a second Ctrl-C ends it as usual.

    Launchers forward signals that their processes have received already, so repetitions within a second, and every
    further SIGTERM, are ignored. Signals that the process ignores, as background processes do, stay ignored. Outside
    the main thread Python receives no signals, so the list stays empty.
    """
    received, asked = list[int](), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def record(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not received:
            received.append(number)
            asked = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > asked + _AGAIN_SECONDS:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, record) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals(worker: int) -> None:
    """Ignore the signals in a data worker (DataLoader's `worker_init_fn`), whose end would end the training at once.

    Workers end with their data loader, at the latest with the process that they work for.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
