"""Kinds of errors: `InputError` is bad input, and a failure of the machine is never turned into one."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROCESS_KILLED = "a process was killed, most likely because memory ran out"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|tried to allocate|(?:can't|cannot|failed to) allocate memory|ALLOC_FAILED", re.IGNORECASE
)
_ALLOCATION = re.compile(r"tried to allocate ([\d.]+) ?(\w+)", re.IGNORECASE)
_KILLED = re.compile(r"terminated abruptly|DataLoader worker \(pid.* (?:killed by signal|exited unexpectedly)")
# Full or broken disks, and limits of the system.
_OF_THE_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)
_OF_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise no OSError


class InputError(ValueError):
    """Bad input: the message is one line that says what, what was expected and what was got.

    It is a `ValueError`, so library users catch it as such; the command line prints the message alone and exits 2.
    """


class DivergedError(InputError):
    """A training that came to what is no number, at the learning rate that was given."""


class Stopped(KeyboardInterrupt):
    """A training that was asked to end, by Ctrl-C or SIGTERM, and has saved where it stands.

    Attributes:
        exit_code: 128 and the number of the signal, as a shell has it.
    """

    def __init__(self, message: str, *, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal

    def __reduce__(self) -> tuple[Any, ...]:
        """From a process of its own it arrives as it is."""
        return functools.partial(Stopped, signal=self.exit_code - 128), self.args


class OutOfMemoryError(MemoryError):
    """Memory ran out: the message is one line that says so, whatever raised it."""


class MachineError(OSError):
    """The machine failed at something: the message is one line that says at what."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a CPU or an accelerator, where torch and libraries have no exception in common.

    A process that was killed counts: so the system does when memory runs out.
    """
    torch = sys.modules.get("torch")  # the command line does not wait for it
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    message = str(error) if isinstance(error, RuntimeError) else ""
    return bool(_OUT_OF_MEMORY.search(message) or _KILLED.search(message)) or _error_number(error) == errno.ENOMEM


def machine_failure(error: BaseException) -> str | None:
    """What the machine failed at, in one line: memory, disk or a process that was killed; None for any other error."""
    if isinstance(error, (OutOfMemoryError, MachineError)):
        return str(error)
    if out_of_memory(error):
        message = str(error)
        if _KILLED.search(message):
            return PROCESS_KILLED
        found = _ALLOCATION.search(message)
        if found:
            return f"memory ran out: {_readable_size(*found.groups())} could not be allocated"
        return "memory ran out" + (f": {error_text(error)}" if message else "")
    if _error_number(error) not in _OF_THE_SYSTEM:
        return None
    name = getattr(error, "filename", None)
    return (f"{name}: " if name else "") + (getattr(error, "strerror", None) or error_text(error))


def failure_kind(error: BaseException) -> type[Exception]:
    """As what to raise, with a line of its own, that something failed: what the machine failed at is no bad input."""
    if machine_failure(error) is None:
        return InputError
    return OutOfMemoryError if out_of_memory(error) else MachineError


def error_text(error: BaseException) -> str:
    """What an error says, in one line."""
    kind = f"{type(error).__name__}: " if isinstance(error, KeyError) else ""  # a key alone says nothing
    first_line, *others = str(error).splitlines() or [type(error).__name__]
    if first_line.endswith(":") and others:  # and what is wrong stands below
        first_line += f" {others[0].strip()}"
    return kind + first_line


def _error_number(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = _OF_RUST.search(str(error)) if isinstance(error, Exception) and not isinstance(error, ValueError) else None
    return int(found[1]) if found else None


def _readable_size(number: str, unit: str) -> str:
    return f"{int(number) / 2**30:,.2f} GiB" if unit == "bytes" else f"{number} {unit}"


@contextmanager
def input_errors(what: str) -> Iterator[None]:
    """Around calls of a library with nothing of ours but what a person gave: what it raises is an `InputError`.

    What the machine failed at, as when memory or disk space runs out, is raised as it is.
    """
    try:
        yield
    except BaseException as error:
        if machine_failure(error) is not None:
            raise
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        raise InputError(f"{what}: {error_text(error)}") from error


@contextmanager
def errors_named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around writing to a path: an `OSError` without a file name, as a full disk gives, gets this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def renamed(name: str, own: str) -> Iterator[None]:
    """Around a call that knows a setting by another name: its `InputError` about `name` is one about `own`."""
    try:
        yield
    except InputError as error:
        message = str(error)
        if not message.startswith(f"{name}:"):
            raise
        raise InputError(own + message[len(name) :]) from None
