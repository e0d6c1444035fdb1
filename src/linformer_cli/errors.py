"""Exceptions: `InputError` for bad input, and others for failures of the machine, which are never an `InputError`."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

PROCESS_KILLED = "a process was killed, most likely because memory ran out"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|tried to allocate|(?:can't|cannot|failed to) allocate memory|ALLOC_FAILED", re.IGNORECASE
)
_KILLED = re.compile(r"terminated abruptly|DataLoader worker \(pid.* (?:killed by signal|exited unexpectedly)")
# Full or failing disks, and limits of the operating system.
_SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)
_RUST_OS = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise other types than OSError


class InputError(ValueError):
    """Bad input: the message is one line with the name of the input, what was expected and what was given.

    The command line prints the message without a traceback and exits with status 2.
    """


def check_input(condition: bool, name: str, expected: str, got: object) -> None:
    """Raise an `InputError` unless a condition holds; strings that are got stand in quotes."""
    if not condition:
        raise InputError(f"{name}: expected {expected}, got {got!r}")


def check_choice(name: str, got: object, choices: Iterable[str]) -> None:
    """Raise an `InputError` with the choices for a value that is none of them."""
    check_input(got in (choices := list(choices)), name, f"one of {', '.join(choices)}", got)


class DivergedError(InputError):
    """Training diverged: the loss or the gradient is NaN or infinite."""


class Stopped(KeyboardInterrupt):
    """Training was stopped by Ctrl-C or SIGTERM, after a checkpoint was saved.

    Attributes:
        exit_code: 128 plus the number of the signal, as in a shell.
    """

    def __init__(self, message: str, *, signal: int = 2) -> None:  # pickle gives none, and sets the attribute
        super().__init__(message)
        self.exit_code = 128 + signal


class OutOfMemoryError(MemoryError):
    """Memory ran out; the message is one line, whichever library raised the original error."""


class MachineError(OSError):
    """A failure of the machine, such as a full disk; the message is one line."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that CPU or accelerator memory ran out; torch and other libraries raise different types.

    A killed process counts as well, since the operating system kills processes when memory runs out.
    """
    torch = sys.modules.get("torch")  # not imported, because the command line must start fast
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    message = str(error) if isinstance(error, RuntimeError) else ""
    return bool(_OUT_OF_MEMORY.search(message) or _KILLED.search(message)) or _error_number(error) == errno.ENOMEM


def machine_failure(error: BaseException) -> str | None:
    """Describe a failure of the machine (memory, disk, a killed process) in one line; None for any other error."""
    if isinstance(error, (OutOfMemoryError, MachineError)):
        return str(error)
    if out_of_memory(error):
        if _KILLED.search(str(error)):
            return PROCESS_KILLED
        return "memory ran out" + (f": {error_text(error)}" if str(error) else "")
    if _error_number(error) not in _SYSTEM_ERRORS:
        return None
    name = getattr(error, "filename", None)
    return (f"{name}: " if name else "") + (getattr(error, "strerror", None) or error_text(error))


def failure_kind(error: BaseException) -> type[Exception]:
    """The exception type to raise for an error: `OutOfMemoryError`, `MachineError`, or else `InputError`."""
    if machine_failure(error) is None:
        return InputError
    return OutOfMemoryError if out_of_memory(error) else MachineError


def error_text(error: BaseException) -> str:
    """The message of an error, in one line."""
    kind = f"{type(error).__name__}: " if isinstance(error, KeyError) else ""  # the message is only the key
    first_line, *others = str(error).splitlines() or [type(error).__name__]
    if first_line.endswith(":") and others:  # the cause is on the next line
        first_line += f" {others[0].strip()}"
    return kind + first_line


def _error_number(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    number = _RUST_OS.search(str(error)) if isinstance(error, Exception) and not isinstance(error, ValueError) else None
    return int(number[1]) if number else None


@contextmanager
def input_errors(what: str) -> Iterator[None]:
    """Turn errors of third-party calls on user input into `InputError`.

    Failures of the machine, such as memory or disk space that runs out, are raised unchanged.

    Args:
        what: Start of the message.
    """
    try:
        yield
    except BaseException as error:
        if machine_failure(error) is not None:
            raise
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # raised by Rust libraries
            raise
        raise InputError(f"{what}: {error_text(error)}") from error


@contextmanager
def extra_errors(name: str) -> Iterator[None]:
    """Import packages that an extra of this package installs.

    Raises:
        InputError: One is not installed; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if error.name is None or package.startswith("linformer_"):
            raise
        raise InputError(f'expected the package {package} (pip install "linformer-kit[{name}]"), got none') from None


@contextmanager
def errors_named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the path to an error of the system without a file name, such as that of a full disk."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is not None and getattr(error, "filename", None) is None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextmanager
def renamed(name: str, setting: str) -> Iterator[None]:
    """Name another setting at the start of an `InputError` that starts with `name`."""
    try:
        yield
    except InputError as error:
        raise InputError(re.sub(f"^{name}:", f"{setting}:", str(error))) from None
