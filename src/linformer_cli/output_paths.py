"""Checks of outputs. Those of the command line run before the libraries are imported, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError

RUN_MARK = "run.json"  # marks a folder as a run of this package
LOCK = ".lock"  # of a folder, while a process writes to it; a killed one leaves the file, which no longer locks


def check_output(settings: Any) -> None:
    """Raise an `InputError` for the output of a command where that exists and is not to be continued."""
    resumable, resume = hasattr(settings, "resume"), getattr(settings, "resume", False)
    out, folder = getattr(settings, "out", None), getattr(settings, "output_dir", None)
    if folder is not None and resumable:
        check_run_folder(folder, resume=resume)
    elif folder is not None:
        check_new_folder("output_dir", folder)
    if out is not None and resumable:
        check_new_files([Path(out), Path(f"{out}.part")], goes_on=resume)
    elif out is not None:
        check_new_folder("out", out)


def check_new_folder(name: str, folder: str) -> Path:
    """Check that an output folder, of a setting of this name, is new or empty, and return its path.

    Raises:
        InputError: if it is not empty, is a file or is not writable.
    """
    path = Path(folder)
    if path.is_dir() and any(each.name != LOCK for each in path.iterdir()):
        raise InputError(f"{name}: expected a new or empty folder, got {path}, which is not empty")
    check_writable(path, name)
    return path


def check_writable(folder: Path, name: str = "output_dir") -> None:
    """Raise an error if a folder cannot be created or written to; called before any long work."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise InputError(f"{name}: expected a folder, got the file {nearest}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{name}: expected a folder to write to, got {nearest}, which may not be written to")


def check_run_folder(folder: str, *, resume: bool) -> None:
    """Raise an error unless the folder of a run is new or empty, or with `resume` holds a run to continue."""
    if not (Path(folder) / RUN_MARK).exists():
        check_new_folder("output_dir", folder)
    elif not resume:
        expected = "output_dir: expected a new or empty folder"
        raise InputError(f"{expected}, got {folder}, which holds a run; --resume continues it")


def check_new_files(paths: Iterable[Path], *, goes_on: bool) -> None:
    """Raise an error if one of the files of an output exists, unless it goes on, or is a folder."""
    paths = list(paths)
    if folder := next(filter(Path.is_dir, paths), None):
        raise InputError(f"out: expected a file, got the folder {folder}")
    if (existing := next(filter(Path.exists, paths), None)) and not goes_on:
        raise InputError(f"out: expected a new file, got {existing}; --resume continues it")
