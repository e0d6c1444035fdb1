"""Classify any number of texts, in order and in constant memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError
from linformer_cli.settings import PredictSettings
from linformer_kit.data.read import Text, TextColumns, is_table, read_texts
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.inference.batches import together
from linformer_kit.inference.classifier import Classifier, read_classes
from linformer_kit.inference.files import find_texts, write_rows
from linformer_kit.inference.scores import answers_of, class_probabilities, names_of

_DIGITS = 6


def predict(settings: PredictSettings) -> dict[str | None, int]:
    """Classify the texts of files; write one line of JSON for each.

    A line has `row` (from 1, counted over all rows of the files), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`. Until the output is complete
    it is `OUTPUT.part`, and `resume` continues it after an interruption.

    Returns:
        The number of texts of each class, and of all under None, for this call only.

    Raises:
        InputError: for a file that cannot be read (nothing is written), a model that is not a classifier, an output
            that exists, or an output to resume that was made from another file or model.
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

    def lines(group: list[Text], done: int) -> bytes:
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
            sys.stdout.write(lines(group, counts[None]).decode())
        return counts
    identity = {
        **classifier.identity(),
        "files": [[path.name, file_fingerprint(path)] for path in paths],
        "columns": dataclasses.asdict(columns),
        "threshold": settings.threshold,
    }
    write_rows(settings, Path(settings.output), identity, texts(), total, lines)
    return counts
