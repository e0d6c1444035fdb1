"""What a command writes to stderr, and its exit code."""

from __future__ import annotations

import codecs
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from linformer_cli.errors import InputError, Stopped, error_text, machine_failure


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turn errors into one line on stderr and an exit code.

    Raises:
        SystemExit: 2 for bad input; 1 for failures of the machine (memory, disk, a killed process); 128 plus the number
            of the signal that stopped the command. Any other error is a bug and stays a traceback with exit code 1.
    """
    try:
        yield
    except BrokenPipeError:  # the reader stopped, as in `linformer ... | head`
        _discard_output()
        raise SystemExit(141) from None
    except InputError as error:
        _fail(str(error))
    except Stopped as stopped:
        print(f"linformer: {stopped}", file=sys.stderr)
        raise SystemExit(stopped.exit_code) from None
    except KeyboardInterrupt:
        print("linformer: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except OSError as error:
        failure = machine_failure(error)
        if failure is None and error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        place = "" if _flushed() else "standard output: "
        _fail(place + (failure or error.strerror or error_text(error)), code=1)
    except Exception as error:
        failure = machine_failure(error)
        if failure is None:
            raise
        _fail(failure, code=1)


def set_up_logging() -> None:
    """Log this package's messages to stderr; from the libraries only errors, without their progress bars."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    first = os.environ.get("RANK", "0") == "0"  # only one of torchrun's processes logs
    logging.getLogger("linformer_kit").setLevel(logging.INFO if first else logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else each forked data worker warns
    libraries = importlib.import_module("transformers.utils.logging")
    libraries.set_verbosity_error()
    libraries.disable_progress_bar()


def prepare_output() -> None:
    """Open the null device as stdout or stderr where that was closed before the start (`>&-`).

    Characters that the encoding of stdout does not have are written as in JSON (`\\u03b2`), so that JSON stays valid.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
    codecs.register_error("json", _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="json")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _flushed() -> bool:
    """Flush stdout and return whether that worked; if not, discard the rest, which would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, *, code: int = 2) -> NoReturn:
    print(f"linformer: error: {message}", file=sys.stderr)
    raise SystemExit(code) from None
