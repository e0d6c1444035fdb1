"""The command `linformer`: a subcommand, its typed settings, one function call.

Nothing heavy is imported before the settings are parsed and valid.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Sequence
from typing import Any

from linformer_kit.commands.output import errors_reported, prepare_output, set_up_logging
from linformer_kit.commands.parser import parse
from linformer_kit.commands.table import COMMANDS, Command
from linformer_kit.errors import OutOfMemoryError, machine_failure, out_of_memory


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        arguments: Command line arguments after `linformer`; None: those of this process.

    Raises:
        SystemExit: for every failure except a bug in this package, which stays a traceback; see `errors_reported`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    prepare_output()
    with errors_reported():
        _run(arguments)


def _run(arguments: Sequence[str]) -> None:
    """Parse the arguments and run the command; flush stdout when it returns or exits."""
    try:
        name, settings = parse(arguments)
        module, function = COMMANDS[name].function.split(":")
        run = getattr(importlib.import_module(module), function)
        set_up_logging()
        try:
            run(settings)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise OutOfMemoryError(f"{machine_failure(error)}{_advice(COMMANDS[name], settings)}") from error
    except SystemExit:  # after --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _advice(command: Command, settings: Any) -> str:
    """The end of an out-of-memory message: which settings to lower, and that `--resume` continues the run."""
    values = {name: operator.attrgetter(name)(settings) for name in command.memory}
    told = [name if value is None else f"{name} ({value})" for name, value in values.items()]
    resumable = hasattr(settings, "resume") and (getattr(settings, "output_dir", None) or hasattr(settings, "output"))
    return (f"; lower {' or '.join(told)}" if told else "") + (
        "; --resume continues from what is saved" if resumable else ""
    )
