"""Labelled texts for training and evaluation, of files or of the hub, with all checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linformer_cli.errors import InputError
from linformer_cli.settings import EvaluateSettings, FinetuneSettings, LabelledSettings, names_only
from linformer_kit.data.cached import content_hash
from linformer_kit.data.corpus import held_out
from linformer_kit.data.examples import Columns, Example, Labels, as_examples, labels_of, listed_classes
from linformer_kit.data.files import find_files
from linformer_kit.data.read import TABLE_SUFFIXES, Row, hub_rows, load_hub, read_table

logger = logging.getLogger(__name__)

ACCURACY, MACRO_F1, MICRO_F1 = "accuracy", "macro_f1", "micro_f1"


@dataclass(frozen=True)
class LabelledTexts:
    """Labelled texts for training and validation."""

    train: list[Example]
    validation: list[Example]
    labels: Labels
    columns: Columns
    metrics: tuple[str, ...]  # the first one selects the best model
    description: str  # source and numbers of texts in one line, for logs and reports

    def fingerprint(self) -> str:
        """Hexadecimal hash of all texts and classes."""
        every = (*self.train, *self.validation)
        sizes = [len(self.train), len(self.validation)]
        return content_hash([sizes, *([example.text, example.text_pair, example.values] for example in every)])


def load_labelled(settings: FinetuneSettings) -> LabelledTexts:
    """Find, read and check all labelled texts; suspicious but usable data is logged as a warning.

    Raises:
        InputError: The settings contradict each other, texts are missing, a row is invalid (with file and line), or
            there is only one class.
    """
    _check_source(settings, "train_file")
    columns = columns_of(settings, Columns("text"))
    train = _read(settings, columns, "train")
    labels = labels_of(train, columns.label)
    only_training = settings.train_file and not settings.validation_file
    optional = settings.dataset_name is not None  # a part of the training texts takes their place
    validation = [] if only_training else _read(settings, columns, "validation", optional=optional)
    if not validation:
        texts = ("\0".join(_texts_of(example)) for example in train)
        held = held_out(texts, fraction=settings.validation_fraction, seed=settings.split_seed, name="train_file")
        train, validation = ([train[index] for index in np.flatnonzero(side)] for side in (~held, held))
    train = sample(train, settings.max_train_samples, seed=settings.split_seed)
    validation = sample(validation, settings.max_eval_samples, seed=settings.split_seed)
    _check(train, validation, labels, columns)
    name = settings.dataset_name or " ".join(names_only(settings.train_file or []))
    many = ", any number of them for a text" if labels.multi_label else ""
    description = (
        f"{name}: {len(train):,} texts to learn from, {len(validation):,} for validation, "
        f"{len(labels.names)} classes{many}"
    )
    return LabelledTexts(train, validation, labels, columns, metrics_of(labels), description)


def load_measured(settings: EvaluateSettings, labels: Labels, defaults: Columns) -> tuple[list[Example], Columns]:
    """The labelled texts to evaluate a classifier on, and their columns.

    Args:
        settings: Source of the texts.
        labels: The classifier's classes.
        defaults: Columns that the settings do not name.

    Raises:
        InputError: as for `load_labelled`, and for a class that the model does not have.
    """
    _check_source(settings, "validation_file")
    columns = columns_of(settings, defaults)
    examples = sample(_read(settings, columns, "validation"), settings.max_eval_samples, seed=0)
    _check([], examples, labels, columns)
    return examples, columns


def columns_of(settings: LabelledSettings, defaults: Columns) -> Columns:
    """Columns of texts and classes: those of the settings, else of the defaults.

    Raises:
        InputError: for a column that is named twice.
    """
    columns: dict[str, Any] = {
        "text": settings.text_column,
        "text_pair": settings.text_pair_column,
        "label": settings.label_column,
    }
    given = replace(defaults, **{name: each for name, each in columns.items() if each is not None})
    used = list(given.names().values())
    if len(set(used)) < len(used):
        raise InputError(f"text_column, text_pair_column, label_column: expected different columns, got {used}")
    return given


def metrics_of(labels: Labels) -> tuple[str, ...]:
    """What is measured, the first to choose a model by."""
    return (MICRO_F1, MACRO_F1, ACCURACY) if labels.multi_label else (ACCURACY, MACRO_F1)


def sample(examples: list[Example], count: int | None, *, seed: int) -> list[Example]:
    """At most `count` examples, drawn at random, in their original order."""
    if count is None or count >= len(examples):
        return examples
    drawn = np.random.default_rng(seed).permutation(len(examples))[:count]
    return [examples[index] for index in np.sort(drawn)]


def _read(settings: LabelledSettings, columns: Columns, side: str, *, optional: bool = False) -> list[Example]:
    """The texts of one side; an error if there are none, unless they are optional."""
    field = f"{side}_file"
    rows: Iterator[Row]
    if settings.dataset_name:
        rows = _rows_of_hub(settings, settings.dataset_name, columns, side, optional=optional)
    else:
        paths = find_files(getattr(settings, field) or [], field=field, suffixes=TABLE_SUFFIXES)
        rows = (row for path in paths for row in read_table(path, columns.names()))
    examples = as_examples(rows, columns)
    if not examples and not optional:
        place = settings.dataset_name or " ".join([field, *getattr(settings, field)])
        raise InputError(f"{place}: expected texts, got none")
    return examples


def _rows_of_hub(
    settings: LabelledSettings, name: str, columns: Columns, side: str, *, optional: bool
) -> Iterator[Row]:
    split = getattr(settings, "split", None) or side
    splits = load_hub(name, settings.dataset_config_name)
    if split in splits:
        return hub_rows(name, split, splits[split], columns.names())
    if optional:
        return iter(())
    raise InputError(f"dataset_name {name}: expected a split {split!r}, got {', '.join(map(repr, splits))}")


def _check_source(settings: LabelledSettings, field: str) -> None:
    """Raise an error unless the settings name exactly one source of texts, and nothing that another source has."""
    files = getattr(settings, field)
    if bool(files) == bool(settings.dataset_name):
        raise InputError(f"expected one of {field} and dataset_name, got {'both' if files else 'none'}")
    for name in ("split", "dataset_config_name") if files else ("validation_file",):
        if value := getattr(settings, name, None):
            raise InputError(f"{name}: expected none with {field if files else 'dataset_name'}, got {value}")


def _texts_of(example: Example) -> tuple[str, ...]:
    return (example.text,) if example.text_pair is None else (example.text, example.text_pair)


def _check(train: Sequence[Example], validation: Sequence[Example], labels: Labels, columns: Columns) -> None:
    """Raise an error for unknown classes; warn of texts in both parts, and of classes without texts."""
    learnt = {_texts_of(example) for example in train}
    if both := [example.source for example in validation if _texts_of(example) in learnt]:
        logger.warning(
            f"validation: {len(both):,} of {len(validation):,} texts are also in the training texts, "
            f"which makes the metrics too high; the first: {both[0]}"
        )
    for side, examples in (("training", train), ("validation", validation)):
        present = {
            labels.number(value, source=example.source, column=columns.label)
            for example in examples
            for value in example.values
        }
        absent = [name for number, name in enumerate(labels.names) if number not in present]
        if examples and absent:
            logger.warning("%s: no text has class %s", side, listed_classes(absent))
