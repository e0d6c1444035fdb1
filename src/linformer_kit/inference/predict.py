"""Classify any number of texts, in order and in constant memory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linformer_kit.data.examples import Labels
from linformer_kit.data.read import TextColumns, is_table, read_texts
from linformer_kit.errors import InputError, errors_named
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.classifier import Classifier, Prediction, trained_columns
from linformer_kit.inference.files import (
    check_made_from,
    check_text_column,
    create_new,
    file_of_texts,
    mark_of,
)
from linformer_kit.inference.scores import check_threshold, predicted
from linformer_kit.settings import PredictSettings

_DIGITS = 6


def predict(settings: PredictSettings) -> dict[str | None, int]:
    """Classify the texts of a file; write one line of JSON for each.

    A line has `row` (from 1, counted over all rows of the file), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`. Lines are written as they are
    computed: after an interruption `resume` continues after the last complete line.

    Returns:
        The number of texts of each class, and of all under None, for this call only.

    Raises:
        InputError: for a file that cannot be read (nothing is written), a model that is not a classifier, an output
            that exists, or an output to resume that was made from another file or model.
    """
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    check_threshold(settings.threshold)
    output = None if settings.output is None else Path(settings.output).expanduser()
    if output is not None and (not output.name or output.is_dir()):
        raise InputError(f"output: expected a file, got {settings.output!r}")
    path = file_of_texts(settings.file, () if output is None else (output, mark_of(output)))
    columns = _columns(settings, path)
    total = sum(1 for _ in read_texts(path, columns))  # rejected before the model is loaded
    classifier = Classifier(settings)
    identity = {
        "model_fingerprint": classifier.fingerprint(),
        "file_sha256": file_fingerprint(path),
        "text_column": columns.text,
        "text_pair_column": columns.text_pair,
        "max_length": settings.max_length,
        "stride": settings.stride,
        "threshold": settings.threshold,
        "labels": list(classifier.labels.names),
        "bf16": classifier.bf16,
    }
    counts: dict[str | None, int] = {None: 0, **dict.fromkeys(classifier.labels.names, 0)}
    with _opened(settings, output, identity) as (done, write):
        bar = tqdm(total=total, initial=done, unit=" texts", dynamic_ncols=True, delay=2)
        with bar:
            for row, prediction in enumerate(classifier(read_texts(path, columns), skip=done), start=done + 1):
                line = _line(row, prediction, classifier.labels, settings.threshold)
                write(json.dumps(line, ensure_ascii=False) + "\n")
                names = line["label"] if classifier.labels.multi_label else [line["label"]]
                for name in (None, *names):
                    counts[name] += 1
                bar.update()
    return counts


def _columns(settings: PredictSettings, path: Path) -> TextColumns:
    """Columns of the text and, if the model was trained on pairs, of the second text."""
    trained = trained_columns(settings.model)
    columns = TextColumns(settings.text_column or trained.text, settings.text_pair_column or trained.text_pair)
    if not is_table(path) and columns.text_pair is not None:
        raise InputError(f"file: expected a table with a column {columns.text_pair!r} for pairs, got {path}")
    check_text_column(settings.text_column, path)
    return columns


def _line(row: int, prediction: Prediction, labels: Labels, threshold: float) -> dict[str, Any]:
    found = predicted(prediction.probabilities[None], multi_label=labels.multi_label, threshold=threshold)[0]
    label: Any
    if labels.multi_label:
        label = [name for name, yes in zip(labels.names, found, strict=True) if yes]
    else:
        label = labels.names[int(found)]
    probabilities = {
        name: round(float(chance), _DIGITS) for name, chance in zip(labels.names, prediction.probabilities, strict=True)
    }
    return {"row": row, "label": label, "probabilities": probabilities} | (
        {"lost_tokens": prediction.lost} if prediction.lost else {}
    )


@contextmanager
def _opened(
    settings: PredictSettings, path: Path | None, identity: dict[str, Any]
) -> Iterator[tuple[int, Callable[[str], object]]]:
    """Open the output; yield the number of lines it has and a function that writes; write errors name the output."""
    if path is None:
        if settings.resume:
            raise InputError("resume: expected an output to resume, got none")
        yield 0, sys.stdout.write
        return
    done = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if settings.resume and path.exists():
        if path.stat().st_size:  # else a kill left it empty, perhaps before the record was written
            check_made_from(path, identity)
            done = _whole_lines(path)
    elif not settings.overwrite:
        create_new(path)
    write_whole(mark_of(path), json.dumps(identity, indent=2) + "\n")
    file = path.open("a" if done else "w", encoding="utf-8")

    def write(text: str) -> None:
        with errors_named(path):
            file.write(text)

    try:
        yield done, write
    finally:
        with errors_named(path):
            file.close()


def _whole_lines(path: Path) -> int:
    """Number of complete lines of an output; removes an incomplete last line."""
    lines, end = 0, 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
    os.truncate(path, end)
    return lines
