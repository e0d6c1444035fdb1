"""Checks of outputs. Those of the command line run before the libraries are imported, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError

# The file that marks a folder as a run of this package; without it, `overwrite` must not delete anything.
RUN_MARK = "run.json"


def check_output(settings: Any) -> None:
    """Raise an `InputError` for the output of a command where that exists and is not to be replaced or continued."""
    resumable = hasattr(settings, "resume")
    goes_on = resumable and (settings.resume or settings.overwrite)
    out, folder = getattr(settings, "out", None), getattr(settings, "output_dir", None)
    if folder is not None and resumable:
        check_no_run(Path(folder), goes_on=goes_on)
    elif folder is not None:
        check_new_folder("output_dir", folder)
    if out is not None and resumable:
        check_new_files([Path(out), Path(f"{out}.part")], goes_on=goes_on)
    elif out is not None:
        check_new_folder("out", out)


def check_new_folder(name: str, folder: str) -> Path:
    """Check that an output folder, of a setting of this name, is new or empty, and return its path.

    Raises:
        InputError: if it is not empty, is a file or is not writable.
    """
    path = Path(folder)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{name}: expected a new or empty folder, got {path}, which exists")
    check_writable(path.resolve(), name)
    return path


def check_writable(folder: Path, name: str = "output_dir") -> None:
    """Raise an error if a folder cannot be created or written to; called before any long work."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise InputError(f"{name}: expected a folder, got the file {nearest}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{name}: expected a folder to write to, got {nearest}, which may not be written to")


def check_no_run(folder: Path, *, goes_on: bool) -> None:
    """Raise an error if a folder holds a run, unless it goes on or is overwritten."""
    if (folder / RUN_MARK).exists() and not goes_on:
        raise InputError(
            f"output_dir: expected a folder without a run, but {folder} holds one; "
            "continue it with --resume or remove it with --overwrite"
        )


def check_new_files(paths: Iterable[Path], *, goes_on: bool) -> None:
    """Raise an error if one of the files of an output exists, unless it goes on or is overwritten, or is a folder."""
    paths = list(paths)
    if folder := next(filter(Path.is_dir, paths), None):
        raise InputError(f"out: expected a file, got the folder {folder}")
    if (existing := next(filter(Path.exists, paths), None)) and not goes_on:
        advice = "continue with --resume, or start again with --overwrite"
        raise InputError(f"out: expected a new file, got {existing}; {advice}")
