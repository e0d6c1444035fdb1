"""The command `linformer`: a subcommand, its typed settings, one function call.

Nothing heavy is imported before the settings are parsed and valid.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from linformer_cli.errors import OutOfMemoryError, machine_failure, out_of_memory
from linformer_cli.output import errors_reported, prepare_output, set_up_logging
from linformer_cli.parser import parse
from linformer_cli.table import COMMANDS

# Settings that memory depends on, the first to lower first.
_OF_MEMORY = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "batch_size", "tokens", "samples"),
    *("max_length", "max_tokens", "seq_len", "lengths", "max_position_embeddings"),
)


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
        name, settings = parse(arguments)
        run = importlib.import_module(COMMANDS[name].module or f"linformer_kit.commands.{name.replace('-', '_')}").main
        set_up_logging()
        try:
            run(settings)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise OutOfMemoryError(f"{machine_failure(error)}{_advice(settings)}") from error
        sys.stdout.flush()


def _advice(settings: Any) -> str:
    """The end of an out-of-memory message: which settings to lower, and that `--resume` continues the run."""
    values = {name: getattr(settings, name) for name in _OF_MEMORY if hasattr(settings, name)}
    lower = " or ".join(name if value is None else f"{name} ({value})" for name, value in values.items())
    resumable = hasattr(settings, "resume") and (getattr(settings, "output_dir", None) or hasattr(settings, "output"))
    return (f"; lower {lower}" if lower else "") + ("; --resume continues from what is saved" if resumable else "")
