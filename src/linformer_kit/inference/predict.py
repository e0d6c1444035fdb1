"""Classify any number of texts, in order and in constant memory."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import PredictSettings
from linformer_kit.data.read import TextColumns, is_table, read_texts
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.inference.batches import Text, together
from linformer_kit.inference.classifier import Classifier, trained_columns
from linformer_kit.inference.files import GrowingFile, check_not_read, check_text_column, file_of_texts
from linformer_kit.inference.scores import answers_of, class_probabilities, names_of

_DIGITS = 6


def predict(settings: PredictSettings) -> dict[str | None, int]:
    """Classify the texts of a file; write one line of JSON for each.

    A line has `row` (from 1, counted over all rows of the file), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`. Until the output is complete
    it is `OUTPUT.part`, and `resume` continues it after an interruption.

    Returns:
        The number of texts of each class, and of all under None, for this call only.

    Raises:
        InputError: for a file that cannot be read (nothing is written), a model that is not a classifier, an output
            that exists, or an output to resume that was made from another file or model.
    """
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    if settings.output is None and settings.resume:
        raise InputError("resume: expected an output to resume, got none")
    output = None if settings.output is None else Path(settings.output)
    path = file_of_texts(settings.file)
    if output is not None:
        if output.is_dir():
            raise InputError(f"output: expected a file, got {settings.output!r}")
        check_not_read([path], output)
    columns = _columns(settings, path)
    total = sum(1 for _ in read_texts(path, columns))  # rejects an unreadable file before the model is loaded
    classifier = Classifier(settings)
    counts: dict[str | None, int] = {None: 0, **dict.fromkeys(classifier.labels.names, 0)}
    if output is None:
        for lines, _ in _lines(classifier, settings, read_texts(path, columns), counts, total):
            sys.stdout.write(lines)
        return counts
    identity = {
        "model_fingerprint": classifier.fingerprint(),
        "file_sha256": file_fingerprint(path),
        "text_column": columns.text,
        "text_pair_column": columns.text_pair,
        "max_length": settings.max_length,
        "threshold": settings.threshold,
        "labels": list(classifier.labels.names),
        "bf16": classifier.bf16,
    }
    with GrowingFile(output, identity, resume=settings.resume, overwrite=settings.overwrite) as file:
        texts = itertools.islice(read_texts(path, columns), file.texts, None)
        for lines, number in _lines(classifier, settings, texts, counts, total, file.texts):
            file.write(lines.encode(), number)
    return counts


def _columns(settings: PredictSettings, path: Path) -> TextColumns:
    """Columns of the text and, if the model was trained on pairs, of the second text."""
    trained = trained_columns(settings.model)
    columns = TextColumns(settings.text_column or trained.text, settings.text_pair_column or trained.text_pair)
    if not is_table(path) and columns.text_pair is not None:
        raise InputError(f"file: expected a table with a column {columns.text_pair!r} for pairs, got {path}")
    check_text_column(settings.text_column, path)
    return columns


def _lines(
    classifier: Classifier,
    settings: PredictSettings,
    texts: Iterator[Text],
    counts: dict[str | None, int],
    total: int,
    done: int = 0,
) -> Iterator[tuple[str, int]]:
    """Lines of the output and their number, for texts after the first `done` ones; counts the classes."""
    labels = classifier.labels
    with tqdm(total=total, initial=done, unit=" texts", dynamic_ncols=True, delay=2) as bar:
        for group in together(texts):
            logits, truncated = classifier(group)
            answers = answers_of(logits, multi_label=labels.multi_label, threshold=settings.threshold)
            probabilities = class_probabilities(logits, multi_label=labels.multi_label).tolist()
            lines = []
            for answer, chances, lost in zip(answers, probabilities, truncated.tolist(), strict=True):
                done += 1
                label = names_of(answer, labels)
                rounded = (round(chance, _DIGITS) for chance in chances)
                line: dict[str, Any] = {"row": done, "label": label}
                line |= {"probabilities": dict(zip(labels.names, rounded, strict=True))}
                line |= {"lost_tokens": lost} if lost else {}
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
                for name in (None, *([label] if isinstance(label, str) else label)):
                    counts[name] += 1
            yield "".join(lines), len(group)
            bar.update(len(group))
