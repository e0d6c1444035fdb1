"""Measure the quality of a model on a file of texts, in PyTorch or exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.data.examples import TextColumns, read_texts
from linformer_kit.data.files import check_file
from linformer_kit.data.labelled import load_measured, metrics_of
from linformer_kit.errors import InputError
from linformer_kit.export.exportable import CLASSIFIER, ENCODER, Arrays, Run, Source
from linformer_kit.inference.batches import by_length
from linformer_kit.inference.classifier import read_labels, trained_columns
from linformer_kit.inference.files import check_text_column
from linformer_kit.inference.scores import answers_of, scores
from linformer_kit.settings import EvaluateSettings, ExportSettings

_ROWS = 16


def quality_of(settings: ExportSettings, source: Source) -> tuple[str, Callable[[Run], float]]:
    """Name of the measure and a function that computes it; the texts are read and checked in this call.

    Classifiers: accuracy, or micro_f1 for multi-label. Encoders without a head: cosine of mean embeddings with those
    of PyTorch in float32.

    Raises:
        InputError: for a model with another head, and for texts or classes that cannot be used.
    """
    head = source.exportable.head
    if head == CLASSIFIER:
        return _classifier_quality(settings, source)
    if head != ENCODER:
        raise InputError(f"validation_file: expected none for {head.kind}, got {settings.validation_file}")
    windows = _encoded(source, list(_texts(settings)))

    def measure(run: Run) -> float:
        found = [
            _cosines(source.exportable.run(inputs)[0], run(inputs)[0], inputs)
            for _, inputs in _batches(source, windows)
        ]
        return float(np.concatenate(found).mean())

    return "cosine with float32", measure


def _classifier_quality(settings: ExportSettings, source: Source) -> tuple[str, Callable[[Run], float]]:
    labelled = EvaluateSettings(
        model=settings.model,
        validation_file=[str(settings.validation_file)],
        text_column=settings.text_column,
        text_pair_column=settings.text_pair_column,
        label_column=settings.label_column,
        max_eval_samples=settings.max_eval_samples,
    )
    examples, labels, columns = load_measured(labelled, read_labels(settings.model), trained_columns(settings.model))
    right = np.array([labels.target(example, column=columns.label) for example in examples])
    windows = _encoded(source, [(example.text, example.text_pair) for example in examples])
    metric = metrics_of(labels)[0]

    def measure(run: Run) -> float:
        logits = np.empty((len(windows), len(labels.names)))
        for places, inputs in _batches(source, windows):
            logits[places] = run(inputs)[0]
        answers = answers_of(logits, multi_label=labels.multi_label)
        return scores(answers, right, (metric,), len(labels.names))[metric]

    return metric, measure


def _cosines(ours: np.ndarray, theirs: np.ndarray, inputs: Arrays) -> np.ndarray:
    real = inputs["attention_mask"][..., None] == 1
    one, other = (np.where(real, outputs, 0).sum(axis=1) for outputs in (ours, theirs))
    return (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def _texts(settings: ExportSettings) -> Iterator[tuple[str, str | None]]:
    """The first texts of a file; classes are not read."""
    path = Path(str(settings.validation_file)).expanduser()
    check_file(path, field="validation_file")
    if settings.label_column is not None:
        raise InputError(
            f"label_column: expected none for a model that is no classifier, got {settings.label_column!r}"
        )
    for field in ("text_column", "text_pair_column"):
        check_text_column(getattr(settings, field), path, field=field)
    columns = TextColumns(settings.text_column or "text", settings.text_pair_column)
    return islice(read_texts(path, columns), settings.max_eval_samples)


def _encoded(source: Source, texts: list[tuple[str, str | None]]) -> list[Window]:
    if not texts:
        raise InputError("validation_file: expected texts, got none")
    return [text.windows[0] for text in Encoder(source.tokenizer, source.limit)(texts)]


def _batches(source: Source, windows: list[Window]) -> Iterator[tuple[list[int], Arrays]]:
    """Batches of texts of similar length: their indices and their padded inputs."""
    exportable, tokenizer, _ = source
    for places in tqdm(by_length(windows, _ROWS), desc="measure", unit=" batches", dynamic_ncols=True, delay=2):
        padded = tokenizer.pad([windows[place] for place in places], return_tensors="np")
        yield places, {name: padded[name].astype(np.int64) for name in exportable.input_names}
