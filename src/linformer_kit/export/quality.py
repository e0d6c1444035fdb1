"""Measure the quality of a model on a file of texts, in PyTorch or exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.data.examples import TextColumns, read_texts
from linformer_kit.data.labelled import load_measured, metrics_of
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.validate import check_exists, check_not_empty, check_suffix
from linformer_kit.errors import InputError
from linformer_kit.export.exportable import CLASSIFIER, ENCODER, MASKED_LM, QUESTION_ANSWERING, Arrays, Run, Source
from linformer_kit.inference.batches import batches
from linformer_kit.inference.classifier import read_labels, trained_columns
from linformer_kit.inference.files import check_text_column
from linformer_kit.inference.scores import answers_of, scores
from linformer_kit.settings import IGNORED_LABEL, EvaluateSettings, ExportSettings

_ROWS = 16
_MASKED = 0.15  # of the tokens, as in pretraining
_REAL = "attention_mask"


def quality_of(settings: ExportSettings, source: Source) -> tuple[str, Callable[[Run], float]]:
    """Name of the measure and a function that computes it; the texts are read and checked in this call.

    Classifiers: accuracy, or micro_f1 for multi-label. Masked language models: the loss on masked tokens, the same ones
    in each call. All others: agreement with PyTorch in float32, as the cosine of mean embeddings or the share of equal
    token labels or answers.

    Raises:
        InputError: for texts or classes that cannot be used.
    """
    head = source.exportable.head
    if head == CLASSIFIER:
        return _classifier_quality(settings, source)
    windows = _encoded(source, list(_texts(settings)))
    if head == MASKED_LM:
        return "masked token loss", _masked_token_loss(source, windows)
    name, alike = {
        ENCODER: ("cosine with float32", _cosines),
        QUESTION_ANSWERING: ("answers as in float32", _same_answers),
    }.get(head, ("tokens as in float32", _same_tokens))

    def measure(run: Run) -> float:
        found = [alike(source.exportable.run(inputs), run(inputs), inputs) for _, inputs in _batches(source, windows)]
        return float(np.concatenate(found).mean())

    return name, measure


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


def _masked_token_loss(source: Source, windows: list[Window]) -> Callable[[Run], float]:
    masker = BlockMasker(source.tokenizer, seed=0, probability=_MASKED)
    blocks = [masker(np.array(window["input_ids"]), epoch=0, index=index) for index, window in enumerate(windows)]
    masked = [
        {**window, "input_ids": block["input_ids"].tolist()} for window, block in zip(windows, blocks, strict=True)
    ]
    if all((block["labels"] == IGNORED_LABEL).all() for block in blocks):
        raise InputError("validation_file: expected texts with tokens to mask, got none")

    def measure(run: Run) -> float:
        losses = []
        for places, inputs in _batches(source, masked):
            logits = run(inputs)[0][inputs[_REAL] == 1].astype(np.float64)
            labels = np.concatenate([blocks[place]["labels"].numpy() for place in places])
            logits, labels = logits[labels != IGNORED_LABEL], labels[labels != IGNORED_LABEL]
            largest = logits.max(axis=1, keepdims=True)
            logarithm = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
            losses.append(logarithm - np.take_along_axis(logits, labels[:, None], axis=1)[:, 0])
        return float(np.concatenate(losses).mean())

    return measure


def _cosines(ours: list[np.ndarray], theirs: list[np.ndarray], inputs: Arrays) -> np.ndarray:
    real = inputs[_REAL][..., None] == 1
    one, other = (np.where(real, outputs[0], 0).sum(axis=1) for outputs in (ours, theirs))
    return (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def _same_answers(ours: list[np.ndarray], theirs: list[np.ndarray], inputs: Arrays) -> np.ndarray:
    padded = inputs[_REAL] == 0
    same = [
        np.where(padded, -np.inf, one).argmax(axis=1) == np.where(padded, -np.inf, other).argmax(axis=1)
        for one, other in zip(ours, theirs, strict=True)
    ]
    return np.logical_and(*same)


def _same_tokens(ours: list[np.ndarray], theirs: list[np.ndarray], inputs: Arrays) -> np.ndarray:
    return (ours[0].argmax(axis=-1) == theirs[0].argmax(axis=-1))[inputs[_REAL] == 1]


def _texts(settings: ExportSettings) -> Iterator[tuple[str, str | None]]:
    """The first texts of a file; classes are not read."""
    path = Path(str(settings.validation_file)).expanduser()
    check_exists(path, field="validation_file")
    check_suffix(path, field="validation_file")
    check_not_empty(path, field="validation_file")
    if settings.label_column is not None:
        raise InputError(
            f"label_column: expected none for a model that is no classifier, got {settings.label_column!r}"
        )
    for field in ("text_column", "text_pair_column"):
        check_text_column(getattr(settings, field), path, field=field)
    columns = TextColumns(settings.text_column or "text", settings.text_pair_column)
    for number, text in enumerate(read_texts(path, columns)):
        if number == settings.max_eval_samples:
            return
        yield text


def _encoded(source: Source, texts: list[tuple[str, str | None]]) -> list[Window]:
    if not texts:
        raise InputError("validation_file: expected texts, got none")
    return [text.windows[0] for text in Encoder(source.tokenizer, source.limit)(texts)]


def _batches(source: Source, windows: list[Window]) -> Iterator[tuple[list[int], Arrays]]:
    """Batches of texts of similar length: their indices and their padded inputs."""
    exportable, tokenizer, _ = source
    every = list(batches(windows, _ROWS, equal_lengths=False))
    for places in tqdm(every, desc="measure", unit=" batches", dynamic_ncols=True, delay=2):
        padded = tokenizer.pad([windows[place] for place in places], return_tensors="np")
        yield places, {name: padded[name].astype(np.int64) for name in exportable.input_names}
