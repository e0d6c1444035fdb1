r"""Reading of texts: rows of tables and documents, of files and of the hub, with errors that name file and line.

| file            | one row, whose text column is a document                              |
|-----------------|-----------------------------------------------------------------------|
| .jsonl .json    | a line that holds one JSON object                                     |
| .csv            | a record, fields quoted with " where needed, between , ; tab or \|     |
| .tsv            | a line; quotes have no special meaning, as in GLUE                    |
| .parquet        | a row                                                                 |

A document of .txt, .py and .md is the whole file (`file`), or a line (`line`).

A file without suffix, which is what a pipe held, is the kind that fits its first line.

All text is UTF-8, with or without a byte order mark. Blank lines of tables are skipped. Blank documents are kept where
each has an output of its own, and dropped where they are text to train on.

Data sets of the hub are read by `datasets`; files are not. Its CSV reader shifts the columns of records with too many
fields and fills short ones; its JSON reader turns dates into timestamps and fails where a column that is not asked for
changes its type; its names of files are patterns, so that `[a].txt` reads `a.txt`.
"""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import pyarrow
import pyarrow.parquet
from datasets import ClassLabel, Dataset, DatasetDict, load_dataset, load_from_disk

from linformer_cli.errors import InputError, input_errors

logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".py", ".md")
TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")

Row = tuple[str, dict[str, Any]]  # source (file with line or row), and values by column
Text = tuple[str, str | None]  # a text, and the second text of a pair
T = TypeVar("T", str, Text)

_PARQUET_ROWS = 256
_SEPARATORS = ",;\t|"
# The csv module's default, 128 KiB, is shorter than many documents. This is the largest that every platform accepts.
_LONGEST_FIELD = 2**31 - 1


@dataclass(frozen=True)
class TextColumns:
    """Which columns of a table hold texts."""

    text: str
    text_pair: str | None = None  # the second text of a pair

    def names(self) -> dict[str, str]:
        """Names of the columns by the names of their settings."""
        pair = {} if self.text_pair is None else {"text_pair_column": self.text_pair}
        return {"text_column": self.text, **pair}

    def texts(self, source: str, row: dict[str, Any]) -> Text:
        """The texts of a row; an `InputError` if one is not a valid string."""
        text = check_text(row[self.text], source=source, column=self.text)
        if self.text_pair is None:
            return text, None
        return text, check_text(row[self.text_pair], source=source, column=self.text_pair)


def is_table(path: Path, column: str) -> bool:
    """Whether a file is a table, by its suffix, or without one by its first line, which names the column."""
    return _kind(path, column) in TABLE_SUFFIXES


def _kind(path: Path, column: str) -> str:
    """The suffix of a file, or the one that fits its first line."""
    if path.suffix:
        return path.suffix.lower()
    with path.open("rb") as file:
        line = file.readline().decode("utf-8-sig", errors="replace")
    if line.startswith("PAR1"):
        return ".parquet"
    if line.lstrip().startswith("{"):
        return ".jsonl"
    return ".csv" if any(column in _header([line], each) for each in _dialects(".csv")) else ".txt"


def read_table(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Read a table.

    Args:
        path: A table.
        columns: Names of the columns to read, by the names of their settings.

    Yields:
        Source of a row, and the values of its columns: strings from .csv and .tsv, else any value.

    Raises:
        InputError: At the first part that cannot be read, with file and line.
    """
    kind = _kind(path, next(iter(columns.values())))
    if kind == ".parquet":
        return _parquet_rows(path, columns)
    return _json_rows(path, columns) if kind in (".json", ".jsonl") else _delimited_rows(path, columns, kind)


def read_documents(paths: Iterable[Path], *, document: str, column: str) -> Iterator[str]:
    """Read all non-blank documents of files: whole files (`file`), lines (`line`), or the text column of tables.

    Raises:
        InputError: At the first part that cannot be read, with file and line.
    """
    texts = read_inputs(paths, TextColumns(column), document=document)
    return (text for text, _ in texts if text.strip())


def read_inputs(paths: Iterable[Path], columns: TextColumns, *, document: str) -> Iterator[Text]:
    """Read the texts of files, also blank ones: each row of a table, and each document of other files.

    Raises:
        InputError: at the first text that cannot be read, and for pairs in a file that is no table.
    """
    for path in paths:
        if is_table(path, columns.text):
            yield from (columns.texts(source, row) for source, row in read_table(path, columns.names()))
        elif columns.text_pair is not None:
            raise InputError(f"text_pair_column: expected tables with a column {columns.text_pair!r}, got {path}")
        else:
            with open_text(path) as file:
                texts = (line.rstrip("\n") for line in file) if document == "line" else [file.read()]
                yield from ((text, None) for text in texts)


def text_groups(texts: Iterable[T], *, count: float = math.inf, characters: float = math.inf) -> Iterator[list[T]]:
    """Groups of consecutive texts or pairs, each up to this count of them or this number of characters."""
    group: list[T] = []
    length = 0
    for text in texts:
        group.append(text)
        length += sum(map(len, filter(None, (text,) if isinstance(text, str) else text)))
        if len(group) >= count or length >= characters:
            yield group
            group, length = [], 0
    if group:
        yield group


def load_hub(name: str, config: str | None, split: str | None = None) -> dict[str, Dataset]:
    """Splits of a data set on the Hugging Face hub, or of a local folder with the same layout; runs no code of it.

    A folder of `save_to_disk` is read as well; without splits it is the training split.

    Raises:
        InputError: for what cannot be read, and without the split of that name.
    """
    with input_errors(f"dataset_name {name}"):
        splits = load_from_disk(name) if is_saved_dataset(Path(name)) else load_dataset(name, config)
    splits = splits if isinstance(splits, DatasetDict) else {"train": splits}
    if split is not None and split not in splits:
        raise InputError(f"dataset_name {name}: expected a split {split!r}, got {', '.join(map(repr, splits))}")
    return splits


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder is one of `save_to_disk` of a data set, or of several splits."""
    names = ("dataset_dict.json",), ("dataset_info.json", "state.json")
    return any(all((folder / name).is_file() for name in each) for each in names)


def hub_rows(name: str, split: str, rows: Dataset, columns: Mapping[str, str]) -> Iterator[Row]:
    """Rows of a split of the hub, as `read_table`; classes by name if the data set has names for them."""
    check_columns(f"dataset_name {name} {split}", columns, rows.column_names)
    rows = rows.select_columns(list(columns.values()))
    # Columns of classes, or of lists of classes, for which the data set has names.
    features = {column: getattr(feature, "feature", feature) for column, feature in rows.features.items()}
    classes = {column: feature for column, feature in features.items() if isinstance(feature, ClassLabel)}
    for number, row in enumerate(rows, start=1):
        for column, feature in classes.items():
            value = row[column]
            unpublished = isinstance(value, int) and value < 0  # in test splits
            row[column] = None if value is None or unpublished else feature.int2str(value)
        yield f"{name} {split} row {number}", row


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 text file; other bytes raise an `InputError`."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        with path.open("rb") as file:
            wrong = (n for n, line in enumerate(file, start=1) if line.decode(errors="replace").encode() != line)
            number = next(wrong, 1)
        got = f"the byte 0x{error.object[error.start]:02x}; save it as UTF-8 (in Excel: CSV UTF-8)"
        raise InputError(f"{path} line {number}: expected UTF-8 text, got {got}") from error


def check_columns(source: Path | str, wanted: Mapping[str, str], columns: Sequence[str]) -> None:
    """Raise an error unless every wanted column, by the name of its setting, exists once."""
    for setting, column in wanted.items():
        if column not in columns:
            existing = ", ".join(map(repr, columns)) or "none"
            raise InputError(f"{source}: no column {column!r} ({setting}); it has {existing}")
        if (count := columns.count(column)) > 1:
            raise InputError(f"{source}: expected one column {column!r} ({setting}), got {count} of that name")


def check_text(value: Any, *, source: str, column: str) -> str:
    """Return a value of a column if it is a string that can be encoded as UTF-8, else raise an error."""
    if not isinstance(value, str):
        raise InputError(f"{source}: {column!r} is {type(value).__name__}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{source}: {column!r} has half a surrogate pair at character {error.start}") from None
    return value


def _json_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            source = f"{path} line {number}"
            try:
                row = json.loads(line, object_pairs_hook=_without_repetition)
            except (ValueError, RecursionError) as error:
                # The rest of the parser's message has a line number within this line, which would be misleading.
                problem = str(error).split(": line ")[0]
                raise InputError(f"{source}: not JSON ({problem}); expected one object per line") from None
            if not isinstance(row, dict):
                raise InputError(f"{source}: JSON {type(row).__name__}; expected one object per line")
            check_columns(source, columns, list(row))
            yield source, {column: row[column] for column in columns.values()}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]}")
    return row


def _dialects(kind: str) -> list[dict[str, Any]]:
    """How the columns of a table may be separated, the likeliest first."""
    if kind == ".tsv":
        return [{"delimiter": "\t", "quoting": csv.QUOTE_NONE, "strict": True}, *_dialects(".csv")]
    return [{"delimiter": separator, "strict": True} for separator in _SEPARATORS]


def _header(lines: Iterable[str], dialect: dict[str, Any]) -> list[str]:
    """The first record in a dialect; none if its quotes are wrong then."""
    with suppress(csv.Error):
        return next(csv.reader(lines, **dialect), [])
    return []


def _delimited_rows(path: Path, columns: Mapping[str, str], kind: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    quoted = 0  # rows of a .tsv whose quotes look like those of CSV

    def fit(dialect: dict[str, Any]) -> tuple[bool, int]:
        file.seek(0)
        header = _header(file, dialect)
        return set(columns.values()) <= set(header), len(header)

    with open_text(path, newline="") as file:
        dialect = max(_dialects(kind), key=fit)
        file.seek(0)
        rows = csv.reader(file, **dialect)
        try:
            header = next(rows, [])
            check_columns(path, columns, header)
            places = {column: header.index(column) for column in columns.values()}
            last_line = rows.line_num
            for row in rows:
                # A quoted field may contain line breaks: report the line where the row starts.
                source, last_line = f"{path} line {last_line + 1}", rows.line_num
                if len(row) == len(header):
                    values = {column: row[place] for column, place in places.items()}
                    quoted += dialect.get("quoting") == csv.QUOTE_NONE and any(map(_is_quoted, values.values()))
                    yield source, values
                elif row:
                    raise InputError(f"{source}: expected {len(header)} fields as in the header, got {len(row)}")
        except csv.Error as error:
            raise InputError(f"{path} line {rows.line_num}: bad quoting ({error}); expected CSV") from None
    if quoted:
        logger.warning(
            f'{path}: quotes as in "say ""hi""" are read as text (rows: {quoted:,}); rename it to .csv to remove them'
        )


def _is_quoted(value: str) -> bool:
    """Whether a value is quoted as in CSV, with a quote inside."""
    inside = value[1:-1]
    return value[:1] == value[-1:] == '"' and '""' in inside and '"' not in inside.replace('""', "")


def _parquet_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_columns(path, columns, file.schema_arrow.names)
            batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns.values()))
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, start=1))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: expected a whole Parquet file, got {str(error).splitlines()[0]}") from None
