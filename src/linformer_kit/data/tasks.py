"""The tasks of section 5.2 of the paper: their data sets, columns, classes and metrics.

| task | one or two texts       | classes                    | measured      |
|------|------------------------|----------------------------|---------------|
| sst2 | a phrase of a review   | negative, positive         | accuracy      |
| imdb | a review               | negative, positive         | accuracy      |
| qnli | a question, a sentence | entailment, not_entailment | accuracy      |
| qqp  | two questions          | not_duplicate, duplicate   | accuracy, F1  |

A local copy is a folder with the original files: GLUE's TSV with a header, or aclImdb as JSON Lines.
To add a task, add an entry to `TASKS`.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCURACY, F1, MACRO_F1, MICRO_F1 = "accuracy", "f1", "macro_f1", "micro_f1"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        title: Name for reports.
        text_column: Column of the text.
        text_pair_column: Column of the second text of a pair; None: single texts.
        label_column: Column of the class on the hub.
        labels: Names of the classes, by number.
        metrics: Names of the metrics; the first one selects the best model.
        hub: Data set and configuration on the Hugging Face hub.
        hub_validation: Split on the hub to evaluate on; it has labels.
        train_file: Training file of a local copy.
        validation_file: Validation file of a local copy.
        file_label_column: Column of the class in these files.
        ragged: Whether to skip records with more or fewer fields than the header, which the files are known to have.
    """

    title: str
    text_column: str
    labels: tuple[str, ...]
    hub: tuple[str, str | None]
    text_pair_column: str | None = None
    label_column: str = "label"
    metrics: tuple[str, ...] = (ACCURACY,)
    hub_validation: str = "validation"
    train_file: str = "train.tsv"
    validation_file: str = "dev.tsv"
    file_label_column: str = "label"
    ragged: bool = False


TASKS = {
    "sst2": Task(title="SST-2", text_column="sentence", labels=("negative", "positive"), hub=("nyu-mll/glue", "sst2")),
    "imdb": Task(
        title="IMDB",
        text_column="text",
        labels=("negative", "positive"),
        hub=("stanfordnlp/imdb", None),
        hub_validation="test",
        train_file="train.jsonl",
        validation_file="test.jsonl",
    ),
    "qnli": Task(
        title="QNLI",
        text_column="question",
        text_pair_column="sentence",
        labels=("entailment", "not_entailment"),
        hub=("nyu-mll/glue", "qnli"),
    ),
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
