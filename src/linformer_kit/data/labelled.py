"""Labelled texts for training and evaluation: from a task, files or the hub, with all checks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linformer_kit.data.examples import Columns, Example, Labels, as_examples, labels_of, listed_classes
from linformer_kit.data.files import check_exists, find_files
from linformer_kit.data.hub import labelled_rows
from linformer_kit.data.read import TABLE_SUFFIXES, read_table, warn_of_ragged
from linformer_kit.data.split import hold_out_texts
from linformer_kit.data.tasks import ACCURACY, MACRO_F1, MICRO_F1, TASKS, Task
from linformer_kit.errors import InputError
from linformer_kit.settings import EvaluateSettings, FinetuneSettings, LabelledSettings, names_only

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledTexts:
    """Labelled texts for training and validation.

    Attributes:
        train: Training texts.
        validation: Validation texts.
        labels: Their classes.
        columns: Columns of texts and classes.
        metrics: Names of the metrics; the first one selects the best model.
        description: Source and numbers of texts in one line, for logs and reports.
    """

    train: list[Example]
    validation: list[Example]
    labels: Labels
    columns: Columns
    metrics: tuple[str, ...]
    description: str

    def fingerprint(self) -> str:
        """Hexadecimal hash of all texts and classes."""
        content = hashlib.sha256()
        for examples in (self.train, self.validation):
            for example in examples:
                content.update(json.dumps([example.text, example.text_pair, example.values]).encode())
        return content.hexdigest()


def load_labelled(settings: FinetuneSettings) -> LabelledTexts:
    """Find, read and check all labelled texts; suspicious but usable data is logged as a warning.

    Raises:
        InputError: The settings contradict each other, texts are missing, a row is invalid (with file and line), or
            there is only one class.
    """
    _check_source(settings, settings.train_file, "train_file")
    task, columns = task_of(settings), columns_of(settings)
    train = _read(settings, columns, task, "train")
    _check_some(train, settings, "train")
    labels = Labels(task.labels, numbered=task.labels) if task else labels_of(train, columns.label)
    validation = _read(settings, columns, task, "validation")
    if not (validation or task or settings.validation_file):
        train, validation = hold_out_texts(train, _key, fraction=settings.validation_fraction, seed=settings.split_seed)
    _check_some(validation, settings, "validation")
    for examples in (train, validation):
        for example in examples:
            labels.target(example, column=columns.label)  # raises an error now, not after tokenisation
    train = sample(train, settings.max_train_samples, seed=settings.split_seed)
    validation = sample(validation, settings.max_eval_samples, seed=settings.split_seed)
    if len({str(labels.target(example, column=columns.label)) for example in train}) < 2:
        only = " and ".join(map(repr, train[0].values)) or "none"
        raise InputError(f"label_column {columns.label!r}: expected two or more classes to learn, got only {only}")
    warn_of_oddities(train, validation)
    warn_of_classes(train, validation, labels, columns)
    name = settings.task or settings.dataset_name or " ".join(names_only(settings.train_file or []))
    description = f"{name}: {len(train):,} texts to learn from, {len(validation):,} for validation, {_named(labels)}"
    return LabelledTexts(train, validation, labels, columns, metrics_of(labels, task), description)


def load_measured(
    settings: EvaluateSettings, labels: Labels, defaults: Columns
) -> tuple[list[Example], Labels, Columns]:
    """The labelled texts to evaluate a classifier on, their classes and columns.

    Args:
        settings: Source of the texts.
        labels: The classifier's classes.
        defaults: Columns that the settings do not name, and the meaning of numbers in the label column.

    Raises:
        InputError: as for `load_labelled`, and for a class that the model does not have.
    """
    _check_source(settings, settings.validation_file, "validation_file")
    task, columns = task_of(settings), columns_of(settings, defaults)
    # Class names alone do not define numbers: in other files 1 may mean negative.
    if set(columns.numbered) <= set(labels.names):
        labels = replace(labels, numbered=columns.numbered)
    elif task:
        labels = replace(labels, numbered=labels.names)  # LABEL_0 and so on
    examples = _read(settings, columns, task, "validation")
    _check_some(examples, settings, "validation")
    for example in examples:
        labels.target(example, column=columns.label)
    examples = sample(examples, settings.max_eval_samples, seed=0)
    warn_of_oddities([], examples)
    return examples, labels, columns


def task_of(settings: LabelledSettings) -> Task | None:
    """The task of the settings, or None."""
    return TASKS[settings.task] if settings.task else None


def columns_of(settings: LabelledSettings, defaults: Columns | None = None) -> Columns:
    """Columns of texts and classes: those of the task, else of the settings, else of the defaults.

    Raises:
        InputError: for a column that is named together with a task.
    """
    task = task_of(settings)
    named = {
        "text_column": settings.text_column,
        "text_pair_column": settings.text_pair_column,
        "label_column": settings.label_column,
        "label_separator": settings.label_separator,
    }
    if task:
        for name, value in named.items():
            if value is not None:
                raise InputError(f"{name}: expected none with --task, which knows its own, got {value!r}")
        return columns_of_task(task, in_files=settings.data_dir is not None)
    for name, value in named.items():
        if value == "":
            raise InputError(f"{name}: expected one or more characters, got none")
    usual = defaults or Columns("text")
    columns = Columns(
        settings.text_column or usual.text,
        settings.text_pair_column or usual.text_pair,
        settings.label_column or usual.label,
        settings.label_separator or usual.label_separator,
        usual.numbered,
    )
    columns = replace(columns, ragged=usual.ragged and columns == replace(usual, ragged=False))
    names = list(columns.names().values())
    if len(set(names)) < len(names):
        raise InputError(f"text_column, text_pair_column, label_column: expected different columns, got {names}")
    return columns


def columns_of_task(task: Task, *, in_files: bool) -> Columns:
    """Columns of texts and classes of a task, in its original files or on the hub."""
    label, ragged = (task.file_label_column, task.ragged) if in_files else (task.label_column, False)
    return Columns(task.text_column, task.text_pair_column, label, ragged=ragged, numbered=task.labels)


def metrics_of(labels: Labels, task: Task | None = None) -> tuple[str, ...]:
    """What is measured, the first to choose a model by."""
    if task:
        return task.metrics
    return (MICRO_F1, MACRO_F1, ACCURACY) if labels.multi_label else (ACCURACY, MACRO_F1)


def sample(examples: list[Example], count: int | None, *, seed: int) -> list[Example]:
    """At most `count` examples, drawn at random, in their original order."""
    if count is None or count >= len(examples):
        return examples
    drawn = np.random.default_rng(seed).permutation(len(examples))[:count]
    return [examples[index] for index in np.sort(drawn)]


def warn_of_oddities(train: Sequence[Example], validation: Sequence[Example]) -> None:
    """Warn of empty texts, of validation texts that are also training texts, and of a single validation class."""
    for examples in (train, validation):
        empty = [example.source for example in examples if not all(part.strip() for part in _key(example))]
        if empty:
            logger.warning("empty texts: %s, the first %s", f"{len(empty):,}", empty[0])
    learnt = {_key(example) for example in train}
    both = [example for example in validation if _key(example) in learnt]
    if both:
        logger.warning(
            "validation: %s of %s texts are also in the training texts, which makes the metrics too high; "
            "the first: %s",
            f"{len(both):,}",
            f"{len(validation):,}",
            both[0].source,
        )
    counts = Counter(example.values for example in validation)
    if len(counts) == 1:
        logger.warning("validation: all %s texts are %s", f"{len(validation):,}", ", ".join(*counts) or "of no class")


def warn_of_classes(train: Sequence[Example], validation: Sequence[Example], labels: Labels, columns: Columns) -> None:
    """Warn of classes without training or validation texts."""
    for side, examples in (("training", train), ("validation", validation)):
        there = {
            labels.number(value, source=example.source, column=columns.label)
            for example in examples
            for value in example.values
        }
        absent = [name for number, name in enumerate(labels.names) if number not in there]
        if absent:
            logger.warning("%s: no text has class %s", side, listed_classes(absent))


def _read(settings: LabelledSettings, columns: Columns, task: Task | None, side: str) -> list[Example]:
    """The training or validation texts; empty if there are no validation files or split."""
    if _on_hub(settings):
        name, config = (settings.dataset_name, settings.dataset_config_name) if task is None else task.hub
        split = _split(settings, task) if side == "validation" else side
        optional = task is None and side == "validation" and isinstance(settings, FinetuneSettings)
        rows = labelled_rows(str(name), config, split, columns.names(), numbered=task is not None, optional=optional)
        return as_examples(rows, columns)
    ragged: list[str] | None = [] if columns.ragged else None
    if task:
        paths: Iterable[Path] = [_task_file(settings, task.train_file if side == "train" else task.validation_file)]
    else:
        field = f"{side}_file"
        paths = find_files(getattr(settings, field) or [], field=field, suffixes=TABLE_SUFFIXES)
    rows = (row for path in paths for row in read_table(path, columns.names(), ragged=ragged))
    examples = as_examples(rows, columns)
    warn_of_ragged(ragged or [])
    return examples


def _split(settings: LabelledSettings, task: Task | None) -> str:
    """The split to evaluate on."""
    named = settings.split if isinstance(settings, EvaluateSettings) else None
    return named or (task.hub_validation if task else "validation")


def _task_file(settings: LabelledSettings, name: str) -> Path:
    """A file of the local copy of a task, in data_dir or in its subfolder named after the task."""
    folder = Path(settings.data_dir or "").expanduser()
    check_exists(folder, field="data_dir")
    places = (folder / name, folder / str(settings.task) / name)
    for place in places:
        if place.is_file():
            return place
    raise InputError(f"data_dir: expected {places[1]} or {places[0]}, got neither")


def _check_source(settings: LabelledSettings, files: list[str] | None, field: str) -> None:
    """Raise an error unless the settings name exactly one source of texts."""
    given = {"task": settings.task, field: files, "dataset_name": settings.dataset_name}
    named = [name for name, value in given.items() if value]
    if len(named) != 1:
        raise InputError(f"expected one of task, {field} and dataset_name, got {' and '.join(named) or 'none'}")
    if settings.data_dir and not settings.task:
        raise InputError(f"data_dir: expected none without task, got {settings.data_dir}")
    if isinstance(settings, EvaluateSettings) and settings.split and not _on_hub(settings):
        raise InputError(f"split: expected none without a data set of the hub, got {settings.split}")
    if settings.dataset_config_name and not settings.dataset_name:
        raise InputError(f"dataset_config_name: expected none without dataset_name, got {settings.dataset_config_name}")
    if getattr(settings, "validation_file", None) and (settings.task or settings.dataset_name):
        raise InputError(f"validation_file: expected none with {named[0]}, which has its own")


def _on_hub(settings: LabelledSettings) -> bool:
    return bool(settings.dataset_name or (settings.task and not settings.data_dir))


def _check_some(examples: Sequence[Example], settings: LabelledSettings, side: str) -> None:
    if not examples:
        files = getattr(settings, f"{side}_file") or []
        place = " ".join([f"{side}_file", *files]) if files else settings.task or settings.dataset_name
        raise InputError(f"{place}: expected texts, got none")


def _key(example: Example) -> tuple[str, ...]:
    return (example.text,) if example.text_pair is None else (example.text, example.text_pair)


def _named(labels: Labels) -> str:
    return f"{len(labels.names)} classes" + (", any number of them for a text" if labels.multi_label else "")
