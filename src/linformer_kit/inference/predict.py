"""Text classifiers that transformers can load, and the classification of any number of texts in constant memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import ClassifierSettings, PredictSettings
from linformer_kit.data.examples import Columns, Labels, listed_classes
from linformer_kit.data.read import Text, TextColumns, is_table, read_texts
from linformer_kit.data.tokenizer import Window
from linformer_kit.inference.batches import TextModel, together
from linformer_kit.inference.files import find_texts, write_rows
from linformer_kit.inference.scores import answers_of, class_probabilities, names_of
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import fingerprint, load_model

_DIGITS = 6
_KIND = "a classifier (`linformer finetune` makes one)"


def predict(settings: PredictSettings) -> dict[str | None, int]:
    """Classify the texts of files; write one line of JSON for each, by `write_rows` or to standard output.

    A line has `row` (from 1, counted over all rows of the files), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`.

    Returns:
        The number of texts of each class, and of all under None, for this call only.

    Raises:
        InputError: for a file that cannot be read (nothing is written), a model that is not a classifier, and an output
            that `find_texts` or `write_rows` rejects.
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
    counts: dict[str | None, int] = {None: 0, **dict.fromkeys(labels.names, 0)}

    def lines_of(group: list[Text], done: int) -> bytes:
        logits, truncated = classifier(group)
        answers = answers_of(logits, multi_label=labels.multi_label, threshold=settings.threshold)
        probabilities = class_probabilities(logits, multi_label=labels.multi_label).round(_DIGITS).tolist()
        lines = []
        for row, answer, chances, lost in zip(itertools.count(done + 1), answers, probabilities, truncated.tolist()):
            label = names_of(answer, labels)
            line: dict[str, Any] = {"row": row, "label": label}
            line |= {"probabilities": dict(zip(labels.names, chances, strict=True))}
            line |= {"lost_tokens": lost} if lost else {}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
            for name in (None, *([label] if isinstance(label, str) else label)):
                counts[name] += 1
        return "".join(lines).encode()

    if settings.output is None:
        for group in together(texts(), total):
            sys.stdout.write(lines_of(group, counts[None]).decode())
        return counts
    identity = {
        "model_fingerprint": fingerprint(classifier.model),
        "labels": list(labels.names),
        "max_length": classifier.limit,
        "bf16": classifier.bf16,
        "columns": dataclasses.asdict(columns),
        "threshold": settings.threshold,
    }
    write_rows(settings, paths, identity, texts(), total, lines_of)
    return counts


class Classifier(TextModel):
    """A loaded classifier.

    Args:
        settings: The model and the options; the threshold is not used here.

    Attributes:
        labels: The classes.

    Raises:
        InputError: if the model is not a complete classifier, or settings do not fit it.
    """

    def __init__(self, settings: ClassifierSettings) -> None:
        self.labels, _ = read_classes(settings.model)
        model, tokenizer = load_model(settings.model, AutoModelForSequenceClassification, _KIND)
        super().__init__(model, tokenizer, settings.max_length, batch_size=settings.batch_size, bf16=settings.bf16)

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        return self.model(**self.pad(windows)).logits.float().cpu().numpy()


def read_classes(name: str) -> tuple[Labels, Columns]:
    """The classes of a classifier, and the columns of its fine-tuning, without its weights.

    The columns are `text` and `label` if its configuration has none.

    Raises:
        InputError: if the model does not exist or is not a classifier, or its configuration is malformed.
    """
    config = read_config(name, f"model: expected {_KIND}, got {name}")
    named = config.architectures
    if isinstance(named, list) and not any("ForSequenceClassification" in str(each) for each in named):
        raise InputError(f"model: expected {_KIND}, got {', '.join(map(str, named))} in {name}")
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
