"""Labelled texts of files or of the hub, and their classes: checked rows, with their source file and line."""

from __future__ import annotations

import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Num

from linformer_cli.errors import InputError
from linformer_cli.settings import EvaluateSettings, FinetuneSettings, LabelledSettings, names_only
from linformer_kit.data.corpus import split, warn_of_learnt
from linformer_kit.data.files import find_files
from linformer_kit.data.read import TABLE_SUFFIXES, Row, TextColumns, check_text, hub_rows, load_hub, read_table
from linformer_kit.files.manifest import fingerprint

logger = logging.getLogger(__name__)

ACCURACY, MACRO_F1, MICRO_F1 = "accuracy", "macro_f1", "micro_f1"

_SHOWN = 10  # maximum number of classes that an error lists
_MAX_DIFFERENT = 0.75  # ratio of different values to all, up to which they are taken for classes
_INTEGER = re.compile(r"(0|-?[1-9]\d{,17})(\.0+)?", re.ASCII)  # with more digits it is a name
_FRACTION = re.compile(r"[-+]?(\d*[.,]\d+(e[-+]?\d+)?|\d+e-\d+)", re.ASCII | re.IGNORECASE)
_FLAGS = {"-1", "0", "1", "False", "True"}
_MISSING = {"", "nan", "NaN", "<NA>"}  # as pandas writes it
_MAYBE_MISSING = {"n/a", "#n/a", "na", "none", "null", "nil", "-", "?"}  # they may be names of classes as well
_NAMED_ROWS = 3  # of those without a class
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))
# A list, tuple, set or array as Python, NumPy and databases print it, and pandas writes it to CSV; [UNK] is a name.
_PRINTED_LIST = re.compile(
    r"([\w.]+\()?[\[{]\s*((-?[\d.]|['\"]|True|False|.*,).*)?[\]}].*|\(\s*((-?[\d.]+,|['\"]).*)?\)|set\(\)", re.DOTALL
)
# A value of Python's bytes, NumPy, PyTorch or TensorFlow as they print it.
_PRINTED_VALUE = re.compile(
    r"b(['\"]).*\1|<tf\..*>|(np|numpy)\.(True|False)_"
    r"|((np|numpy|torch|tf)\.)?((str|bytes|bool|object)_|u?int\d+|float\d+|[tT]ensor)\(.*\)",
    re.DOTALL,
)


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

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def joined(self) -> str:
        """The same as one string."""
        return "\0".join(self.texts)


@dataclass(frozen=True)
class Labels:
    """The classes of labelled texts."""

    names: tuple[str, ...]  # by number
    multi_label: bool = False  # whether a text may have any number of them instead of one
    other_names: tuple[tuple[str, int], ...] = ()  # as texts write them too, and the number of the class

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured; the first one selects the best model."""
        return (MICRO_F1, MACRO_F1, ACCURACY) if self.multi_label else (ACCURACY, MACRO_F1)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {**dict(self.other_names), **{_canonical(name): number for number, name in enumerate(self.names)}}

    def read_as(self, classes: Collection[str]) -> Labels | None:
        """These classes of a model, and how texts write them; None if the texts have one that is not among them.

        A name in other capitals is the same if no other class is written so, and 3 is `LABEL_3` in a model whose
        classes have no names; both are logged.
        """
        exact = {_canonical(name): number for number, name in enumerate(self.names)}
        numbers = {str(number): number for number in exact.values()} if self._have_no_names else {}
        uses = Counter(map(str.casefold, exact))
        loose = {name.casefold(): number for name, number in exact.items() if uses[name.casefold()] == 1}
        found = {name: exact.get(name, numbers.get(name, loose.get(name.casefold()))) for name in classes}
        if None in found.values() or len(set(found.values())) < len(found):
            return None
        others = {name: number for name, number in found.items() if name not in exact and number is not None}
        for name, number in others.items():
            logger.warning(f"class {name!r} is taken for the model's {self.names[number]!r}")
        return Labels(self.names, self.multi_label, tuple(others.items()))

    @property
    def _have_no_names(self) -> bool:
        """Whether the names are those that transformers gives to classes without one."""
        return self.names == tuple(f"LABEL_{number}" for number in range(len(self.names)))

    def count(self, examples: Iterable[Example]) -> list[int]:
        """The number of examples of each class."""
        uses = Counter(self._numbers[_canonical(value)] for example in examples for value in example.values)
        return [uses[number] for number in range(len(self.names))]

    def targets(self, examples: Iterable[Example], *, column: str) -> Num[np.ndarray, " texts *classes"]:
        """The training target of each example, as `target`."""
        return np.array([self.target(example, column=column) for example in examples])

    def target(self, example: Example, *, column: str) -> int | list[float]:
        """The training target: the index of the class, or, if multi-label, 0.0 or 1.0 for each class.

        Raises:
            InputError: for a class that is none of these, or several where there is one.
        """
        if example.multi_label and not self.multi_label:
            raise InputError(f"{example.source}: {column!r} is a list; expected one class")
        numbers = [self._numbers.get(_canonical(value), -1) for value in example.values]
        if -1 in numbers:
            value, classes = example.values[numbers.index(-1)], listed_classes(self.names)
            raise InputError(f"{example.source}: {column!r} is {value!r}; expected one of {classes}")
        return [float(number in numbers) for number in range(len(self.names))] if self.multi_label else numbers[0]


def as_examples(rows: Iterable[Row], columns: Columns, *, skip_unlabelled: bool = False) -> list[Example]:
    """Convert rows of tables to labelled texts; with `skip_unlabelled`, rows without a class are left out.

    Raises:
        InputError: at the first invalid row, with file and line: a missing text, or a mixture of single classes and
            lists of classes; for rows without a class, with the first lines; and for lists that all have a 0 or 1 for
            each of two classes.
    """
    examples: list[Example] = []
    unlabelled = []
    for source, row in rows:
        if _is_missing(row[columns.label]):
            unlabelled.append(source)
            continue
        example = _example(source, row, columns)
        if examples and example.multi_label != examples[0].multi_label:
            got, expected = ("a list", "one class") if example.multi_label else ("one class", "a list")
            raise InputError(f"{source}: {columns.label!r} is {got}; expected {expected} as in {examples[0].source}")
        examples.append(example)
    if unlabelled:
        first = ", ".join(unlabelled[:_NAMED_ROWS]) + (", …" if len(unlabelled) > _NAMED_ROWS else "")
        got = f"{len(unlabelled):,} of {len(unlabelled) + len(examples):,} rows without one: {first}"
        if not skip_unlabelled:
            advice = "--skip_unlabelled leaves them out"
            raise InputError(f"label_column {columns.label!r}: expected a class in each row, got {got}; {advice}")
        logger.warning(f"label_column {columns.label!r}: left out {got}")
    if examples and all(len(example.values) == 2 and _FLAGS.issuperset(example.values) for example in examples):
        raise _one_hot(examples[0].source, list(examples[0].values), columns.label)
    return examples


def labels_of(examples: Sequence[Example], column: str) -> Labels:
    """The classes that occur, in numerical order if all are integers, else alphabetically.

    Names that join others, such as `a|b` beside `a` and `b`, are logged as a warning.

    Raises:
        InputError: for texts that all have the same classes, or nearly all another one.
    """
    count = Counter(value for example in examples for value in example.values)
    names = sorted(count, key=int if all(map(_INTEGER.fullmatch, count)) else None)
    if len(names) > max(_SHOWN, sum(count.values()) * _MAX_DIFFERENT):
        got = f"{len(names)} different values in {len(examples)} rows"
        raise InputError(f"label_column {column!r}: expected classes, got {got}")
    if len({frozenset(example.values) for example in examples}) < 2:
        got = f"only {listed_classes(names)}" if names else "none"
        raise InputError(f"label_column {column!r}: expected two or more classes, got {got} in {len(examples)} rows")
    parts = {name: [part.strip() for part in re.split("[|;,]", name)] for name in names}
    uses = Counter(part for each in parts.values() for part in each)
    if joined := [name for name, each in parts.items() if len(each) > 1 and all(uses[part] > 1 for part in each)]:
        advice = "if a text may have several classes, give lists in JSON Lines or Parquet"
        logger.warning(f"label_column {column!r}: {listed_classes(joined)} are taken for one class each; {advice}")
    return Labels(tuple(names), multi_label=examples[0].multi_label)


def remarks(classes: Collection[str]) -> dict[str, str]:
    """What is doubtful about names of classes: those that differ in capitals alone, and words for a missing value."""
    spelt: dict[str, list[str]] = {}
    for name in classes:
        spelt.setdefault(name.casefold(), []).append(name)
    found = {}
    for name in classes:
        if others := [other for other in spelt[name.casefold()] if other != name]:
            found[name] = f"differs from {listed_classes(others)} in capitals alone"
        elif name.casefold() in _MAYBE_MISSING:
            found[name] = "a class, or a missing one?"
    return found


def listed_classes(names: Sequence[str]) -> str:
    """The names of the first classes, for messages."""
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


def _example(source: str, row: dict[str, Any], columns: Columns) -> Example:
    text, text_pair = columns.texts(source, row)
    value = row[columns.label]
    if isinstance(value, str) and _PRINTED_LIST.fullmatch(value.strip()):
        got = f"{value.strip()[:40]!r}, a list as text"
        raise InputError(
            f"{source}: {columns.label!r} is {got}; expected one class, or a list in JSON Lines or Parquet"
        )
    multi_label = isinstance(value, list)
    values = [_class(each, source, columns.label) for each in (value if multi_label else [value])]
    if len(set(values)) < len(values) and _FLAGS.issuperset(values):
        raise _one_hot(source, value, columns.label)
    return Example(source, text, text_pair, tuple(dict.fromkeys(values)), multi_label)


def _one_hot(source: str, value: list[Any], column: str) -> InputError:
    got = f"{value!r:.40}, as if a 0 or 1 stood for each class"
    return InputError(f"{source}: {column!r} is {got}; expected the names or numbers of the text's classes")


def _is_missing(value: Any) -> bool:
    return value is None or _canonical(str(value)) in _MISSING


def _class(value: Any, source: str, column: str) -> str:
    """A class as a string: Parquet and JSON contain numbers, and floats in columns with missing values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if _is_missing(value):
        raise InputError(f"{source}: no class in {column!r}; expected one")
    name = _canonical(str(value))
    if isinstance(value, str) and _PRINTED_VALUE.fullmatch(name):
        got = f"{name[:40]!r}, a value as a library prints it"
        raise InputError(f"{source}: {column!r} is {got}; expected the class itself, such as {'pos'!r} or 1")
    fraction = _FRACTION.fullmatch(name)
    if fraction or not isinstance(value, (str, int)):
        got = f"{name}, a number with a fraction" if fraction else type(value).__name__
        raise InputError(f"{source}: {column!r} is {got}; expected a class, as text or a whole number")
    return check_text(name, source=source, column=column)


def _canonical(name: str) -> str:
    """A class as it is compared: what prints alike is equal, and 1.0, as pandas writes 1, is 1; 01 is a name."""
    name = " ".join(unicodedata.normalize("NFC", name.translate(_INVISIBLE)).split())
    match = _INTEGER.fullmatch(name)
    return match[1] if match else name


@dataclass(frozen=True)
class LabelledTexts:
    """Labelled texts for training and validation."""

    train: list[Example]
    validation: list[Example]
    labels: Labels
    columns: Columns
    description: str  # source and numbers of texts in one line, for logs and reports

    def fingerprint(self) -> str:
        """Hexadecimal hash of all texts, and of their classes with the numbers that they have."""
        sides = (self.train, self.validation)
        texts = (((each.text, each.text_pair, each.values) for each in side) for side in sides)
        return fingerprint(self.labels.names, self.labels.multi_label, *texts)


def load_labelled(settings: FinetuneSettings, known: Labels | None = None) -> LabelledTexts:
    """Find, read and check all labelled texts; validation texts that are training texts too are logged as a warning.

    The classes are those of the training texts; or all that the model knows already, `known`, in its order, if each
    class of the training texts is one of them.

    Raises:
        InputError: The settings contradict each other, texts are missing, a row is invalid (with file and line), or
            there is only one class.
    """
    columns = _columns(settings, "train_file", Columns("text"))
    train = _read(settings, columns, "train")
    found = labels_of(train, columns.label)
    labels = (known and known.read_as(found.names)) or found
    labels = replace(labels, multi_label=found.multi_label)
    validation = _read(settings, columns, "validation", optional=True)
    if not validation:
        texts, fraction = (example.joined for example in train), settings.validation_fraction
        classes = [example.values for example in train]
        parts = split(texts, fraction=fraction, seed=0, name="train_file", keep=classes)
        train, validation = ([train[index] for index in part] for part in parts)
    train = sample(train, settings.max_train_samples)
    validation = sample(validation, settings.max_eval_samples)
    labels.targets(validation, column=columns.label)  # rejects classes of no training text
    if lost := sorted(set(found.names) - {value for example in train for value in example.values}):
        logger.warning(f"training: no text is left of the classes {listed_classes(lost)}, which cannot be learnt")
    _warn_of_learnt(train, validation)
    name = settings.dataset_name or " ".join(names_only(settings.train_file or []))
    many = ", any number of them for a text" if labels.multi_label else ""
    description = (
        f"{name}: {len(train):,} texts to learn from, {len(validation):,} for validation, "
        f"{len(labels.names)} classes{many}"
    )
    return LabelledTexts(train, validation, labels, columns, description)


def load_measured(settings: EvaluateSettings, defaults: Columns) -> tuple[list[Example], list[Example], Columns]:
    """The labelled texts to evaluate a classifier on, those that words are learnt from, which may be none, and their
    columns: `defaults` where no setting names one. Texts of both are logged as a warning.

    Raises:
        InputError: as for `load_labelled`.
    """
    columns = _columns(settings, "validation_file", defaults)
    train = _read(replace(settings, dataset_name=None), columns, "train", optional=True)
    measured = _read(settings, columns, "validation")
    _warn_of_learnt(train, measured)
    return measured, train, columns


def _warn_of_learnt(train: list[Example], measured: list[Example]) -> None:
    texts = ([example.joined for example in examples] for examples in (train, measured))
    warn_of_learnt(*texts, sources=[example.source for example in measured])


def _columns(settings: LabelledSettings, field: str, defaults: Columns) -> Columns:
    """Columns of texts and classes: those of the settings, else of the defaults.

    Raises an error unless the settings name exactly one source of texts, which is `field` or a data set of the hub,
    nothing that only the other one has, and no column twice.
    """
    files = getattr(settings, field)
    if bool(files) == bool(settings.dataset_name):
        raise InputError(f"expected one of {field} and dataset_name, got {'both' if files else 'none'}")
    for name in ("split", "dataset_config_name") if files else ("validation_file",):
        if value := getattr(settings, name, None):
            raise InputError(f"{name}: expected none with {field if files else 'dataset_name'}, got {value}")
    given = {name: getattr(settings, f"{name}_column") for name in ("text", "text_pair", "label")}
    columns = replace(defaults, **{name: column for name, column in given.items() if column is not None})
    used = list(columns.names().values())
    if len(set(used)) < len(used):
        raise InputError(f"text_column, text_pair_column, label_column: expected different columns, got {used}")
    return columns


def sample(examples: list[Example], count: int | None) -> list[Example]:
    """At most `count` examples, always the same, drawn at random, in their original order.

    Of each class there is one, unless there are more classes than examples.
    """
    if count is None or count >= len(examples):
        return examples
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    of_class: dict[str, int] = {}  # its first text
    for index in order:
        of_class |= {value: index for value in examples[index].values if value not in of_class}
    drawn = list(dict.fromkeys([*of_class.values(), *order]))[:count]
    return [examples[index] for index in sorted(drawn)]


def _read(settings: LabelledSettings, columns: Columns, side: str, *, optional: bool = False) -> list[Example]:
    """The texts of one side, at least one; none only if they are optional, and the source has no such side."""
    rows: Iterator[Row]
    if settings.dataset_name:
        place, name = settings.dataset_name, getattr(settings, "split", None) or side
        splits = load_hub(place, settings.dataset_config_name, None if optional else name)
        if name not in splits:
            return []
        rows = hub_rows(place, name, splits[name], columns.names())
    else:
        field = f"{side}_file"
        patterns = getattr(settings, field) or []
        if optional and not patterns:
            return []
        paths = find_files(patterns, field=field, suffixes=TABLE_SUFFIXES)
        place, rows = " ".join([field, *patterns]), (row for path in paths for row in read_table(path, columns.names()))
    examples = as_examples(rows, columns, skip_unlabelled=settings.skip_unlabelled)
    if not examples:
        raise InputError(f"{place}: expected texts, got none")
    if empty := [each.source for each in examples if not all(map(str.strip, each.texts))]:
        logger.warning(f"{side}: {len(empty):,} of {len(examples):,} texts are empty; the first: {empty[0]}")
    return examples
