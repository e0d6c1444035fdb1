"""Labelled texts for training and evaluation: of a task of the paper, of files or of the hub, with all checks.

The tasks of section 5.2 of the paper:

| task | one or two texts       | classes                    | measured      |
|------|------------------------|----------------------------|---------------|
| sst2 | a phrase of a review   | negative, positive         | accuracy      |
| imdb | a review               | negative, positive         | accuracy      |
| qnli | a question, a sentence | entailment, not_entailment | accuracy      |
| qqp  | two questions          | not_duplicate, duplicate   | accuracy, F1  |

A local copy is a folder for each task with the original files: GLUE's TSV with a header, or aclImdb as JSON Lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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

ACCURACY, F1, MACRO_F1, MICRO_F1 = "accuracy", "f1", "macro_f1", "micro_f1"


@dataclass(frozen=True)
class Task:
    """A task of the paper."""

    title: str  # for reports
    text_column: str
    labels: tuple[str, ...]  # names of the classes, by number
    hub: tuple[str, str | None]  # data set and configuration
    text_pair_column: str | None = None
    metrics: tuple[str, ...] = (ACCURACY,)  # the first one selects the best model
    hub_validation: str = "validation"  # split on the hub to evaluate on; it has labels
    train_file: str = "train.tsv"  # of a local copy, like the following
    validation_file: str = "dev.tsv"
    file_label_column: str = "label"  # on the hub it is `label`
    ragged: bool = False  # whether records are known to have more or fewer fields than the header


TASKS = {
    "sst2": Task("SST-2", "sentence", ("negative", "positive"), ("nyu-mll/glue", "sst2")),
    "imdb": Task(
        title="IMDB",
        text_column="text",
        labels=("negative", "positive"),
        hub=("stanfordnlp/imdb", None),
        hub_validation="test",
        train_file="train.jsonl",
        validation_file="test.jsonl",
    ),
    "qnli": Task("QNLI", "question", ("entailment", "not_entailment"), ("nyu-mll/glue", "qnli"), "sentence"),
    "qqp": Task(
        title="QQP",
        text_column="question1",
        text_pair_column="question2",
        labels=("not_duplicate", "duplicate"),
        metrics=(ACCURACY, F1),
        hub=("nyu-mll/glue", "qqp"),
        file_label_column="is_duplicate",
        ragged=True,
    ),
}


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
    task, columns = task_of(settings), columns_of(settings)
    train = _read(settings, columns, "train")
    labels = Labels(task.labels, numbered=task.labels) if task else labels_of(train, columns.label)
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
    name = settings.task or settings.dataset_name or " ".join(names_only(settings.train_file or []))
    many = ", any number of them for a text" if labels.multi_label else ""
    description = (
        f"{name}: {len(train):,} texts to learn from, {len(validation):,} for validation, "
        f"{len(labels.names)} classes{many}"
    )
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
    _check_source(settings, "validation_file")
    task, columns = task_of(settings), columns_of(settings, defaults)
    # Class names alone do not define numbers: in other files 1 may mean negative.
    if set(columns.numbered) <= set(labels.names):
        labels = replace(labels, numbered=columns.numbered)
    elif task:
        labels = replace(labels, numbered=labels.names)  # LABEL_0 and so on
    examples = _read(settings, columns, "validation")
    examples = sample(examples, settings.max_eval_samples, seed=0)
    _check([], examples, labels, columns)
    return examples, labels, columns


def task_of(settings: LabelledSettings) -> Task | None:
    """The task of the settings, or None."""
    return TASKS[settings.task] if settings.task else None


def columns_of(settings: LabelledSettings, defaults: Columns | None = None) -> Columns:
    """Columns of texts and classes: those of the task, else of the settings, else of the defaults.

    Raises:
        InputError: for a column that is named twice.
    """
    if task := task_of(settings):
        return columns_of_task(task, in_files=settings.data_dir is not None)
    columns: dict[str, Any] = {
        "text": settings.text_column,
        "text_pair": settings.text_pair_column,
        "label": settings.label_column,
    }
    given = replace(defaults or Columns("text"), **{name: each for name, each in columns.items() if each is not None})
    used = list(given.names().values())
    if len(set(used)) < len(used):
        raise InputError(f"text_column, text_pair_column, label_column: expected different columns, got {used}")
    return given


def columns_of_task(task: Task, *, in_files: bool) -> Columns:
    """Columns of texts and classes of a task, in its original files or on the hub."""
    label = task.file_label_column if in_files else "label"
    return Columns(task.text_column, task.text_pair_column, label, numbered=task.labels)


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


def _read(settings: LabelledSettings, columns: Columns, side: str, *, optional: bool = False) -> list[Example]:
    """The texts of one side; an error if there are none, unless they are optional."""
    field, task = f"{side}_file", task_of(settings)
    rows: Iterator[Row]
    if _on_hub(settings):
        rows = _rows_of_hub(settings, columns, side, optional=optional)
    elif task:
        path = Path(str(settings.data_dir)) / str(settings.task) / getattr(task, field)
        rows = read_table(path, columns.names(), skip_ragged=task.ragged)
    else:
        paths = find_files(getattr(settings, field) or [], field=field, suffixes=TABLE_SUFFIXES)
        rows = (row for path in paths for row in read_table(path, columns.names()))
    examples = as_examples(rows, columns)
    if not examples and not optional:
        place = settings.task or settings.dataset_name or " ".join([field, *getattr(settings, field)])
        raise InputError(f"{place}: expected texts, got none")
    return examples


def _rows_of_hub(settings: LabelledSettings, columns: Columns, side: str, *, optional: bool) -> Iterator[Row]:
    task, split = task_of(settings), side
    name, config = task.hub if task else (str(settings.dataset_name), settings.dataset_config_name)
    if side == "validation":
        split = getattr(settings, "split", None) or (task.hub_validation if task else side)
    splits = load_hub(name, config)
    if split in splits:
        return hub_rows(name, split, splits[split], columns.names(), numbered=task is not None)
    if optional:
        return iter(())
    raise InputError(f"dataset_name {name}: expected a split {split!r}, got {', '.join(map(repr, splits))}")


def _check_source(settings: LabelledSettings, field: str) -> None:
    """Raise an error unless the settings name exactly one source of texts, and nothing that another source has."""
    files = getattr(settings, field)
    named = [name for name in ("task", field, "dataset_name") if getattr(settings, name)]
    if len(named) != 1:
        raise InputError(f"expected one of task, {field} and dataset_name, got {' and '.join(named) or 'none'}")
    unused = {
        "data_dir": not settings.task,
        "split": not _on_hub(settings),
        "dataset_config_name": not settings.dataset_name,
        "validation_file": not files,
        **dict.fromkeys(("text_column", "text_pair_column", "label_column"), settings.task),  # which has its own
    }
    for name, is_unused in unused.items():
        if is_unused and (value := getattr(settings, name, None)):
            raise InputError(f"{name}: expected none with {named[0]}, got {value}")


def _on_hub(settings: LabelledSettings) -> bool:
    return bool(settings.dataset_name or (settings.task and not settings.data_dir))


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
