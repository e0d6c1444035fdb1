"""Run a script of `reproduce/` as its command does."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from reproduce.common import run


def start(script: ModuleType, folder: Path, *arguments: object) -> dict:
    """Run a script with these arguments and this output folder; its results."""
    words = [str(argument) for argument in ("--output_dir", folder, *arguments)]
    run(script.Settings, script.measure, script.table, getattr(script, "draw", None), words)
    return json.loads((folder / f"{script.__name__.rpartition('.')[2]}.json").read_text())
