"""The one exception that means: a person gave something that a person can mend."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


@contextmanager
def input_errors(what: str) -> Iterator[None]:
    """Around calls of a library with nothing of ours but what a person gave: whatever it raises is an `InputError`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        kind = f"{type(error).__name__}: " if isinstance(error, KeyError) else ""  # a key alone says nothing
        first_line, *others = str(error).splitlines() or [type(error).__name__]
        if first_line.endswith(":") and others:  # and what is wrong stands below
            first_line += f" {others[0].strip()}"
        raise InputError(f"{what}: {kind}{first_line}") from error


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
