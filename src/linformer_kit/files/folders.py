"""Checks of output folders, and new folders with unique names."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from linformer_cli.errors import InputError


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


def new_folder(parent: Path, name: str) -> Path:
    """Create a folder with an unused name; concurrent runs get different ones."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            break
        except FileExistsError:
            continue
    return folder
