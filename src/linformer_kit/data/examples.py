"""Labelled texts: checked rows of tables, with their source file and line."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linformer_kit.data.read import Row, check_text, is_table, open_text, read_documents, read_table
from linformer_kit.errors import InputError

_SHOWN = 10  # maximum number of classes that an error lists
_DIGITS = 18  # of integers; more are a name
_INTEGER = re.compile(rf"(0|-?[1-9]\d{{,{_DIGITS - 1}}})(\.0+)?", re.ASCII)
_MOST_NUMBERS = 10  # with decimals, as classes; more are scores
_NUMBER = re.compile(r"[+-]?\d*[.,]?\d+(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_ARRAY = re.compile(r"array\(.*\)|\[\s*(-?[\d.]+\s+)+-?[\d.]+\s*\]", re.ASCII | re.DOTALL)  # as NumPy prints it
_FLAGS = {"-1", "0", "1", "False", "True"}


@dataclass(frozen=True)
class TextColumns:
    """Which columns of a table hold texts.

    Attributes:
        text: The text.
        text_pair: The second text of a pair; None: single texts.
        ragged: Whether to skip records with more or fewer fields than the header, instead of raising an error.
    """

    text: str
    text_pair: str | None = None
    ragged: bool = field(default=False, kw_only=True)

    def names(self) -> dict[str, str]:
        """Names of the columns by the names of their settings."""
        pair = {} if self.text_pair is None else {"text_pair_column": self.text_pair}
        return {"text_column": self.text, **pair}

    def texts(self, source: str, row: dict[str, Any]) -> tuple[str, str | None]:
        """The text of a row, and the second text or None.

        Raises:
            InputError: if one is not a valid string.
        """
        text = check_text(row[self.text], source=source, column=self.text)
        if self.text_pair is None:
            return text, None
        return text, check_text(row[self.text_pair], source=source, column=self.text_pair)


@dataclass(frozen=True)
class Columns(TextColumns):
    """Which columns of a table hold texts and classes.

    Attributes:
        label: The class, or a list of classes.
        label_separator: Separator of several classes in one string; None: the string is one class.
        numbered: Names of the classes, by the number that a file may use instead.
    """

    label: str = "label"
    label_separator: str | None = None
    numbered: tuple[str, ...] = ()

    def names(self) -> dict[str, str]:
        return super().names() | {"label_column": self.label}


@dataclass(frozen=True)
class Example:
    """One labelled text.

    Attributes:
        source: File and line or row.
        text: The text.
        text_pair: The second text of a pair.
        values: Its classes as in the file; exactly one unless `multi_label`.
        multi_label: Whether it may have any number of classes.
    """

    source: str
    text: str
    text_pair: str | None
    values: tuple[str, ...]
    multi_label: bool


@dataclass(frozen=True)
class Labels:
    """The classes of a task.

    Attributes:
        names: Names, by number.
        multi_label: Whether a text may have any number of them instead of one.
        numbered: Names by the number that a file may use instead, as in the paper's tasks.
    """

    names: tuple[str, ...]
    multi_label: bool = False
    numbered: tuple[str, ...] = ()

    def number(self, value: str, *, source: str, column: str) -> int:
        """The index of a class that is given as in a file, by name or number.

        Raises:
            InputError: for an unknown class.
        """
        candidates = [value, _as_integer(value)]
        if value.isdecimal() and len(value) <= _DIGITS and int(value) < len(self.numbered):
            candidates.append(self.numbered[int(value)])
        for candidate in candidates:
            if candidate in self.names:
                return self.names.index(candidate)
        known = listed_classes(self.names)
        numbers = f", or 0 to {len(self.numbered) - 1}" if self.numbered else ""
        raise InputError(f"{source}: {column!r} is {value!r}; expected one of {known}{numbers}")

    def target(self, example: Example, *, column: str) -> int | list[float]:
        """The training target: the index of the class, or, if multi-label, 0.0 or 1.0 for each class.

        Raises:
            InputError: for a class that is none of these, or several where there is one.
        """
        if example.multi_label and not self.multi_label:
            raise InputError(f"{example.source}: {column!r} is a list; expected one class")
        numbers = [self.number(value, source=example.source, column=column) for value in example.values]
        return [float(number in numbers) for number in range(len(self.names))] if self.multi_label else numbers[0]


def read_texts(path: Path, columns: TextColumns) -> Iterator[tuple[str, str | None]]:
    """Read the texts of a file: each row of a table, or each line of other files, including blank ones.

    Args:
        path: The file.
        columns: Text columns of a table.
    """
    if is_table(path):
        for source, row in read_table(path, columns.names()):
            yield columns.texts(source, row)
        return
    with open_text(path) as file:
        for line in file:
            yield line.rstrip("\n"), None


def read_inputs(paths: Iterable[Path], columns: TextColumns, *, document: str) -> Iterator[tuple[str, str | None]]:
    """Read the texts of files: each row of a table, and each non-blank document of other files.

    Args:
        paths: The files.
        columns: Text columns of tables.
        document: Rule for files that are no tables, a key of `read.RULES`.

    Raises:
        InputError: at the first text that cannot be read, and for pairs in a file that is no table.
    """
    for path in paths:
        if is_table(path):
            yield from read_texts(path, columns)
        elif columns.text_pair is not None:
            raise InputError(f"text_pair_column: expected none for {path}, which has no columns")
        else:
            yield from ((text, None) for text in read_documents([path], document=document, column=""))


def as_examples(rows: Iterable[Row], columns: Columns) -> list[Example]:
    """Convert rows of tables to labelled texts.

    Raises:
        InputError: at the first invalid row, with file and line: a missing text or class, or a mixture of single
            classes and lists of classes.
    """
    examples: list[Example] = []
    for source, row in rows:
        example = _example(source, row, columns)
        if examples and example.multi_label != examples[0].multi_label:
            got, expected = ("a list", "one class") if example.multi_label else ("one class", "a list")
            raise InputError(f"{source}: {columns.label!r} is {got}; expected {expected} as in {examples[0].source}")
        examples.append(example)
    return examples


def listed_classes(names: Sequence[str]) -> str:
    """The names of the first classes, for messages."""
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


def labels_of(examples: Sequence[Example], column: str) -> Labels:
    """The classes that occur, integers in numerical order (1.0, as pandas writes 1, is 1), others alphabetically.

    Raises:
        InputError: for fewer than two classes (one, if multi-label), a different class in each text, or many numbers
            with decimals.
    """
    found = {value for example in examples for value in example.values}
    multi_label = examples[0].multi_label
    if len(found) < (1 if multi_label else 2):
        got = f"only {next(iter(found))!r}" if found else "none"
        raise InputError(f"label_column {column!r}: expected two or more classes, got {got} in {len(examples)} rows")
    if len(found) == len(examples) > _SHOWN:
        raise InputError(
            f"label_column {column!r}: expected classes, got another value in each of {len(examples)} rows"
        )
    if len(found) > _MOST_NUMBERS and (score := _decimal(found)):
        raise InputError(
            f"label_column {column!r}: expected classes, got {len(found)} numbers such as {score}; to use them as "
            "names of classes, put a letter before each"
        )
    integers = {_as_integer(value) for value in found}
    names = sorted(found) if None in integers else [str(number) for number in sorted(map(int, filter(None, integers)))]
    if len(names) < (1 if multi_label else 2):
        raise InputError(f"label_column {column!r}: expected two or more classes, got only {names[0]!r}")
    return Labels(tuple(names), multi_label=multi_label)


def _decimal(names: Iterable[str]) -> str | None:
    """The first of some names that is a number with decimals, if all are numbers, as scores are; else None."""
    names = sorted(names)
    if not all(map(_NUMBER.fullmatch, names)):
        return None
    return next((name for name in names if _as_integer(name) is None and not name.isdecimal()), None)


def _is_printed(text: str) -> bool:
    """Whether a text is a list, tuple, set or dictionary as Python or NumPy prints it: pandas writes it so to CSV."""
    try:
        value = ast.literal_eval(text) if text.startswith(("[", "(", "{")) else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    return isinstance(value, (list, tuple, set, dict)) or bool(_ARRAY.fullmatch(text))


def _example(source: str, row: dict[str, Any], columns: Columns) -> Example:
    text, text_pair = columns.texts(source, row)
    value = row[columns.label]
    if isinstance(value, str) and _is_printed(value.strip()):
        raise InputError(
            f"{source}: {columns.label!r} is {value.strip()[:40]!r}, a list as text; expected one class, classes with "
            "a label_separator, or a list in JSON Lines or Parquet"
        )
    if columns.label_separator is not None and isinstance(value, str):
        value = [part for part in value.split(columns.label_separator) if part.strip()]
    multi_label = isinstance(value, list)
    values = [_class(each, source, columns.label) for each in (value if multi_label else [value])]
    if len(set(values)) < len(values) and _FLAGS.issuperset(values):
        raise InputError(
            f"{source}: {columns.label!r} is {value!r:.40}, as if a 0 or 1 stood for each class; expected the names or "
            "numbers of the text's classes"
        )
    return Example(source, text, text_pair, tuple(dict.fromkeys(values)), multi_label)


def _class(value: Any, source: str, column: str) -> str:
    """A class as a string: Parquet and JSON contain numbers, and floats in columns with missing values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    if missing or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{source}: no class in {column!r}; expected one")
    if not isinstance(value, (str, int)):
        raise InputError(f"{source}: {column!r} is {type(value).__name__}; expected a class, as text or a whole number")
    return check_text(str(value).strip(), source=source, column=column)


def _as_integer(value: str) -> str | None:
    """An integer in canonical form, else None: 01 is a name."""
    match = _INTEGER.fullmatch(value)
    return match[1] if match else None
