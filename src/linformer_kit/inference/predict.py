"""Text classifiers that transformers can load, and the classification of any number of texts in constant memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import ClassifierSettings, PredictSettings
from linformer_kit.data.examples import Columns, Labels, listed_classes
from linformer_kit.data.read import Text, TextColumns, is_table, read_texts
from linformer_kit.data.tokenizer import Window
from linformer_kit.inference.batches import TextModel
from linformer_kit.inference.files import find_texts, write_rows
from linformer_kit.inference.scores import answers_of, class_probabilities, names_of
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import fingerprint, load_classifier

_DIGITS = 6


def main(settings: PredictSettings) -> None:
    """Write the predictions, and print the number of texts of each class to stderr."""
    texts, counts = predict(settings)
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"{texts:,} texts: {shown}", file=sys.stderr)


def predict(settings: PredictSettings) -> tuple[int, Counter[str]]:
    """Classify the texts of files; write one line of JSON for each, by `write_rows`.

    A line has `row` (from 1, counted over all rows of the files), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`.

    Returns:
        The number of texts, and that of each class, for this call only.

    Raises:
        InputError: for a file that cannot be read (nothing is written) and a model that is not a classifier.
    """
    if settings.output is None and settings.resume:
        raise InputError("resume: expected an output to resume, got none")
    paths = find_texts(settings)
    labels, trained = read_classes(settings.model)
    columns = TextColumns(settings.text_column or trained.text, settings.text_pair_column or trained.text_pair)
    if columns.text_pair is not None and not all(map(is_table, paths)):
        raise InputError(f"file: expected tables with a column {columns.text_pair!r} for pairs, got {settings.file}")

    def texts() -> Iterator[Text]:
        return itertools.chain.from_iterable(read_texts(path, columns) for path in paths)

    total = sum(1 for _ in texts())  # rejects an unreadable file before the model is loaded
    classifier = Classifier(settings)
    classified, counts = 0, Counter(dict.fromkeys(labels.names, 0))

    def rows(group: list[Text], done: int) -> bytes:
        nonlocal classified
        lines = list(classifier.lines(group, done, settings.threshold))
        classified += len(lines)
        for label in (line["label"] for line in lines):
            counts.update([label] if isinstance(label, str) else label)
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()

    identity = {
        "model_fingerprint": fingerprint(classifier.model),
        "labels": list(labels.names),
        "max_length": classifier.limit,
        "bf16": classifier.bf16,
        "columns": dataclasses.asdict(columns),
        "threshold": settings.threshold,
    }
    write_rows(settings, paths, identity, texts(), total, rows)
    return classified, counts


class Classifier(TextModel):
    """A loaded classifier; `labels` are its classes."""

    def __init__(self, settings: ClassifierSettings) -> None:
        model, tokenizer = load_classifier(settings.model)
        self.labels, _ = read_classes(settings.model)
        super().__init__(model, tokenizer, settings.max_length, settings.batch_size, settings.bf16)

    def lines(self, texts: Sequence[Text], done: int, threshold: float) -> Iterator[dict[str, Any]]:
        """The predictions for some texts, of which so many others are in rows before."""
        logits, truncated = self(texts)
        answers = answers_of(logits, multi_label=self.labels.multi_label, threshold=threshold)
        probabilities = class_probabilities(logits, multi_label=self.labels.multi_label).round(_DIGITS)
        for row, answer, chances, lost in zip(itertools.count(done + 1), answers, probabilities.tolist(), truncated):
            line: dict[str, Any] = {"row": row, "label": names_of(answer, self.labels)}
            line |= {"probabilities": dict(zip(self.labels.names, chances, strict=True))}
            yield line | ({"lost_tokens": int(lost)} if lost else {})

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        return self.model(**self.pad(windows)).logits.float().cpu().numpy()


def read_classes(name: str) -> tuple[Labels, Columns]:
    """The classes of a classifier, and the columns of its fine-tuning, without its weights.

    The columns are `text` and `label` if its configuration has none.

    Raises:
        InputError: if the model does not exist or is not a classifier, or its configuration is malformed.
    """
    config = read_config(name, f"model: expected a classifier, got {name}")
    multi_label = config.problem_type == "multi_label_classification"
    numbers = sorted(config.id2label)
    if config.problem_type == "regression" or len(numbers) < (1 if multi_label else 2):
        what = "a regression" if config.problem_type == "regression" else f"a model with {len(numbers)} outputs"
        raise InputError(f"model: expected a classifier, got {what} in {name}")
    names = tuple(str(config.id2label[number]) for number in numbers)
    if numbers != list(range(len(numbers))) or len(set(names)) < len(names):
        expected = "different classes, numbered from 0, in id2label"
        raise InputError(f"model: expected {expected}, got {listed_classes(names)} in {name}")
    recorded = getattr(config, "trained_columns", None) or {"text": "text", "numbered": ()}
    with input_errors(f"model: expected trained_columns as finetune writes them in {name}, got {recorded}"):
        columns = Columns(**recorded | {"numbered": tuple(recorded["numbered"])})
    return Labels(names, multi_label=multi_label), columns
