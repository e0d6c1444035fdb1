"""Checks of text given by the user; each raises an `InputError` with the source, what was expected and what was got."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linformer_kit.errors import InputError

TEXT_SUFFIXES = (".txt", ".py", ".md")
TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
SUFFIXES = TEXT_SUFFIXES + TABLE_SUFFIXES

_CHUNK_BYTES = 1 << 20


def check_exists(path: Path, *, field: str) -> None:
    """Raise an error unless `path` exists.

    Args:
        path: File or folder as given.
        field: Name of its setting.
    """
    if not path.exists():
        raise InputError(f"{field}: no such file or folder: {path}")


def check_suffix(path: Path, *, field: str, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise an error unless the suffix of a file is supported."""
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{field}: {path} has suffix {path.suffix!r}; expected one of {' '.join(suffixes)}")


def check_not_empty(path: Path, *, field: str) -> None:
    """Raise an error if a file is empty."""
    if path.stat().st_size == 0:
        raise InputError(f"{field}: {path} is empty; expected text")


def check_found(paths: Sequence[Path], pattern: str, *, field: str, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise an error if a folder or glob matches no file."""
    if not paths:
        raise InputError(f"{field}: {pattern} matches no file; expected files that end in {' '.join(suffixes)}")


def check_utf8(path: Path) -> None:
    """Raise an error at the first byte of a file that is not UTF-8, with constant memory.

    Args:
        path: File to check.

    Raises:
        InputError: Names the offset in bytes from the start of the file, and the byte there.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with path.open("rb") as file:
        while True:
            chunk = file.read(_CHUNK_BYTES)
            # The decoder keeps the start of a character that two chunks share; errors are reported from that start.
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise InputError(
                    f"{path}: not UTF-8 at byte {offset - waiting + error.start} (0x{byte:02x}); expected UTF-8 text"
                ) from None
            if not chunk:
                return
            offset += len(chunk)


def check_columns(source: Path | str, wanted: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raise an error unless every wanted column exists once.

    Args:
        source: File (and line, if there is one) or data set.
        wanted: Names of the expected columns, by the names of their settings.
        columns: Names of the existing columns.
    """
    for setting, column in wanted.items():
        if column not in columns:
            there = ", ".join(map(repr, columns)) or "none"
            raise InputError(f"{source}: no column {column!r} ({setting}); it has {there}")
        if columns.count(column) > 1:
            raise InputError(
                f"{source}: expected one column {column!r} ({setting}), got {columns.count(column)} of that name"
            )


def check_text(value: Any, *, source: str, column: str) -> str:
    """Return `value` if it is a string that can be encoded as UTF-8, else raise an error.

    Args:
        value: Value of the text column.
        source: File and line or row.
        column: Name of the column.
    """
    if not isinstance(value, str):
        raise InputError(f"{source}: {column!r} is {type(value).__name__}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise InputError(
            f"{source}: {column!r} has half a surrogate pair, U+{code:04X}, at character {error.start}; "
            "expected whole Unicode characters"
        ) from None
    return value


def parse_json_row(text: str, *, source: str) -> dict[str, Any]:
    """Parse one line of JSON Lines.

    Args:
        text: The line.
        source: File and line.

    Returns:
        The object on that line.
    """

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise InputError(f"{source}: expected {repeated!r} once, got it twice")
        return found

    try:
        row = json.loads(text, object_pairs_hook=without_repetition)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        # The rest of the parser's message has a line number within this line, which would be misleading.
        problem = str(error).split(": line ")[0]
        raise InputError(f"{source}: not JSON ({problem}); expected one object per line") from None
    if not isinstance(row, dict):
        raise InputError(f"{source}: JSON {type(row).__name__}; expected one object per line")
    return row


def check_field_count(row: Sequence[str], header: Sequence[str], *, source: str) -> None:
    """Raise an error if a row of a table has more or fewer fields than its header."""
    if len(row) != len(header):
        raise InputError(f"{source}: expected {len(header)} fields as in the header, got {len(row)}")
