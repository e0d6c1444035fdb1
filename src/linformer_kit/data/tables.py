"""Reader of tables: rows are read lazily, each with its file and line.

| file         | one row is                                            |
|--------------|-------------------------------------------------------|
| .jsonl .json | a line that holds one JSON object                     |
| .csv         | a record, fields quoted with " where needed           |
| .tsv         | a line; quotes have no special meaning, as in GLUE    |
| .parquet     | a row                                                 |

Blank lines are skipped.
All text is UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from linformer_kit.data.validate import check_columns, check_field_count, check_utf8, parse_json_row
from linformer_kit.errors import InputError

Row = tuple[str, dict[str, Any]]  # source (file with line or row), and values by column

logger = logging.getLogger(__name__)

_PARQUET_ROWS = 256
# The csv module's default, 128 KiB, is shorter than many documents. This is the largest that every platform accepts.
_LONGEST_FIELD = 2**31 - 1


def read_table(path: Path, columns: Mapping[str, str], *, ragged: list[str] | None = None) -> Iterator[Row]:
    """Read a table.

    Args:
        path: File whose suffix is a key of `READERS`.
        columns: Names of the columns to read, by the names of their settings.
        ragged: If given, records of .csv and .tsv with more or fewer fields than the header are skipped, and their
            sources are added here.

    Yields:
        Source of a row, and the values of its columns: strings from .csv and .tsv, else any value.

    Raises:
        InputError: At the first part that cannot be read, with file and line.
    """
    reader = READERS[path.suffix.lower()]
    return reader(path, columns) if reader is not _delimited_rows else _delimited_rows(path, columns, ragged)


def warn_of_ragged(ragged: Sequence[str]) -> None:
    """Warn of skipped rows, if any."""
    if ragged:
        logger.warning(
            "skipped rows with another number of fields than the header: %s; the first: %s", len(ragged), ragged[0]
        )


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 text file; other bytes raise an `InputError` with their offset."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        check_utf8(path)  # reports the offset in the file; this error only has that in a buffer
        raise


def _json_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                source = f"{path} line {number}"
                row = parse_json_row(line, source=source)
                check_columns(source, columns, list(row))
                yield source, {column: row[column] for column in columns.values()}


def _delimited_rows(path: Path, columns: Mapping[str, str], ragged: list[str] | None = None) -> Iterator[Row]:
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {}
    csv.field_size_limit(_LONGEST_FIELD)
    with open_text(path, newline="") as file:
        rows = csv.reader(file, strict=True, **dialect)
        try:
            header = next(rows, [])
            check_columns(path, columns, header)
            places = {column: header.index(column) for column in columns.values()}
            last_line = rows.line_num
            for row in rows:
                # A quoted field may contain line breaks: report the line where the row starts.
                source, last_line = f"{path} line {last_line + 1}", rows.line_num
                if ragged is not None and row and len(row) != len(header):
                    ragged.append(source)
                elif row:
                    check_field_count(row, header, source=source)
                    yield source, {column: row[place] for column, place in places.items()}
        except csv.Error as error:
            raise InputError(f"{path} line {rows.line_num}: bad quoting ({error}); expected CSV") from None


def _parquet_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid:
        raise InputError(f"{path}: not a Parquet file, though its suffix says so") from None
    with file:
        check_columns(path, columns, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns.values()))
        rows = (row for batch in batches for row in batch.to_pylist())
        try:
            yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, start=1))
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{path}: expected a whole Parquet file, got {str(error).splitlines()[0]}") from None


READERS: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": _delimited_rows,
    ".tsv": _delimited_rows,
    ".parquet": _parquet_rows,
}
