"""A lock for an output that grows, so that one process at a time writes it."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from linformer_cli.errors import InputError, errors_named

logger = logging.getLogger(__name__)

# What file systems without locks answer, such as some network file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextmanager
def locked(lock: Path, name: str) -> Iterator[None]:
    """Hold the lock of an output while it is written. The system releases it when the process ends, however that ends.

    Where the file system has no locks, a warning says so, and the output is written without one.

    Args:
        lock: The lock file, which names this process. It is removed afterwards; a killed process leaves it, unlocked.
        name: Name of the setting of the output, for the message.

    Raises:
        InputError: if another process, or another thread of this one, holds it; the message names the process.
    """
    held, is_locked = FileLock(lock), True
    try:
        with errors_named(lock):
            held.acquire(blocking=False)
    except Timeout:
        raise InputError(f"{name}: expected one run at a time, got another one, {_owner(lock)}") from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: the file system has no locks; start one run at a time there", lock.parent)
        is_locked = False
    try:
        if is_locked:
            with errors_named(lock):
                lock.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        if is_locked:
            with suppress(OSError):  # of a folder that has been removed
                lock.unlink()
            held.release()


def _owner(lock: Path) -> str:
    """The process that holds a lock, as it has written itself."""
    try:
        process, host = lock.read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # it has just begun, or ended
        return f"which holds {lock}"
    return f"process {process} on {host}, which holds {lock}"
