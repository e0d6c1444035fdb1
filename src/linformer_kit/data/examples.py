"""Labelled texts and their classes: checked rows of tables, with their source file and line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from linformer_cli.errors import InputError
from linformer_kit.data.read import Row, TextColumns, check_text

_SHOWN = 10  # maximum number of classes that an error lists
_INTEGER = re.compile(r"(0|-?[1-9]\d{,17})(\.0+)?", re.ASCII)  # with more digits it is a name
_FLAGS = {"-1", "0", "1", "False", "True"}
# A list of numbers, strings or truth values as Python and NumPy print it, which pandas writes to CSV.
_PRINTED_LIST = re.compile(r"\[\s*((-?[\d.]|['\"]|True|False).*)?\]", re.DOTALL)


@dataclass(frozen=True)
class Columns(TextColumns):
    """Which columns of a table hold texts and classes."""

    label: str = "label"  # the class, or a list of classes

    def names(self) -> dict[str, str]:
        return super().names() | {"label_column": self.label}


@dataclass(frozen=True)
class Example:
    """One labelled text."""

    source: str  # file and line or row
    text: str
    text_pair: str | None
    values: tuple[str, ...]  # its classes as in the file; exactly one unless `multi_label`
    multi_label: bool  # whether it may have any number of classes


@dataclass(frozen=True)
class Labels:
    """The classes of labelled texts."""

    names: tuple[str, ...]  # by number
    multi_label: bool = False  # whether a text may have any number of them instead of one

    def number(self, value: str, *, source: str, column: str) -> int:
        """The index of a class that is given as in a file; an `InputError` if it is unknown."""
        for name in (value, _as_integer(value)):
            if name in self.names:
                return self.names.index(name)
        raise InputError(f"{source}: {column!r} is {value!r}; expected one of {listed_classes(self.names)}")

    def target(self, example: Example, *, column: str) -> int | list[float]:
        """The training target: the index of the class, or, if multi-label, 0.0 or 1.0 for each class.

        Raises:
            InputError: for a class that is none of these, or several where there is one.
        """
        if example.multi_label and not self.multi_label:
            raise InputError(f"{example.source}: {column!r} is a list; expected one class")
        numbers = [self.number(value, source=example.source, column=column) for value in example.values]
        return [float(number in numbers) for number in range(len(self.names))] if self.multi_label else numbers[0]


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


def labels_of(examples: Sequence[Example], column: str) -> Labels:
    """The classes that occur, integers in numerical order (1.0, as pandas writes 1, is 1), others alphabetically.

    Raises:
        InputError: for fewer than two classes (one, if multi-label), or a different class in each text.
    """
    values = {value for example in examples for value in example.values}
    if len(values) == len(examples) > _SHOWN:
        raise InputError(
            f"label_column {column!r}: expected classes, got another value in each of {len(examples)} rows"
        )
    integers = {_as_integer(value) for value in values}
    names = sorted(values) if None in integers else sorted(filter(None, integers), key=int)
    multi_label = examples[0].multi_label
    if len(names) < (1 if multi_label else 2):
        got = f"only {names[0]!r}" if names else "none"
        raise InputError(f"label_column {column!r}: expected two or more classes, got {got} in {len(examples)} rows")
    return Labels(tuple(names), multi_label=multi_label)


def listed_classes(names: Sequence[str]) -> str:
    """The names of the first classes, for messages."""
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


def _example(source: str, row: dict[str, Any], columns: Columns) -> Example:
    text, text_pair = columns.texts(source, row)
    value = row[columns.label]
    if isinstance(value, str) and _PRINTED_LIST.fullmatch(value.strip()):
        raise InputError(
            f"{source}: {columns.label!r} is {value.strip()[:40]!r}, a list as text; expected one class, or a list in "
            "JSON Lines or Parquet"
        )
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
