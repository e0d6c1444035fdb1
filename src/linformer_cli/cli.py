"""The command `linformer`: a subcommand, its typed settings, one function call; errors in one line, and an exit code.

Nothing heavy is imported before the settings are parsed and valid.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from linformer_cli.errors import InputError, Stopped, error_text, extra_errors, machine_failure, out_of_memory
from linformer_cli.output_paths import check_output
from linformer_cli.parser import parse
from linformer_cli.settings.declare import COMMANDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        arguments: Command line arguments after `linformer`; None: those of this process.

    Raises:
        SystemExit: for every failure except a bug in this package, which stays a traceback; see `errors_reported`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the encoding of a terminal does not have
    with errors_reported():
        name, settings = parse(arguments)
        if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, one makes the output
            check_output(settings)
        with extra_errors(COMMANDS[name].extra):
            run = importlib.import_module(f"linformer_kit.{COMMANDS[name].module}").main
        set_up_logging()
        run(settings)
        print(end="", flush=True)


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
        advice = "; smaller batches or shorter inputs need less" if out_of_memory(error) else ""
        _fail(failure + advice, code=1)


def set_up_logging() -> None:
    """Log this package's messages to stderr; from the libraries only errors, without their progress bars."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    first = os.environ.get("RANK", "0") == "0"  # only one of torchrun's processes logs
    logging.getLogger("linformer_kit").setLevel(logging.INFO if first else logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else each forked data worker warns
    libraries = importlib.import_module("transformers.utils.logging")
    libraries.set_verbosity_error()
    libraries.disable_progress_bar()


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
    print("linformer: error:", *message.splitlines(), file=sys.stderr)
    raise SystemExit(code) from None
