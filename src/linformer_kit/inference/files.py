"""The file that a command reads texts from, and the record of what its output was made from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from linformer_kit.data.files import as_file, check_file
from linformer_kit.data.read import is_table
from linformer_kit.errors import InputError
from linformer_kit.files.manifest import read_json
from linformer_kit.files.writing import write_new


def file_of_texts(name: str, outputs: Iterable[Path]) -> Path:
    """The file with the texts.

    Args:
        name: Its name.
        outputs: Files that will be written.

    Raises:
        InputError: if it does not exist, is empty or of an unknown kind, or would be overwritten.
    """
    path = as_file(Path(name).expanduser())
    check_file(path, field="file")
    check_not_read([path], outputs)
    return path


def check_not_read(paths: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Reject outputs that would overwrite the files with the texts."""
    for path, place in itertools.product(paths, outputs):
        if place.exists() and place.samefile(path):
            raise InputError(f"output: expected another file than that of the texts, got {place}")


def check_text_column(column: str | None, *paths: Path, field: str = "text_column") -> None:
    """Reject a column of files of which none is a table; `field` is its setting."""
    if column is not None and not any(map(is_table, paths)):
        raise InputError(f"{field}: expected none for lines of text, got {column!r}")


def check_new(path: Path) -> None:
    """Reject an output that exists."""
    if path.exists():
        raise InputError(
            f"output: expected a new file, got {path}; continue with --resume, or start again with --overwrite"
        )


def create_new(path: Path) -> None:
    """Create an empty output that must not exist: of processes that start at once, one does so."""
    try:
        write_new(path, "")
    except FileExistsError:
        check_new(path)


def mark_of(path: Path) -> Path:
    """The file beside an output that records what it is made from."""
    return path.with_name(f"{path.name}.run.json")


def check_made_from(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Check that an output to resume is made from the same file and model.

    Returns:
        What is recorded.

    Raises:
        InputError: if it is not, or nothing is recorded.
    """
    mark = mark_of(path)
    if not mark.exists():
        raise InputError(f"resume: expected {mark} beside {path}, got none")
    before = read_json(mark)
    for name, value in identity.items():
        if before.get(name) != value:
            raise InputError(f"resume: expected the {name} of {mark}, {before.get(name)!r}, got {value!r}")
    return before
