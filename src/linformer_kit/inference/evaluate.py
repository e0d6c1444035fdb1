"""Evaluate a classifier on labelled texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

from linformer_cli.settings import EvaluateSettings, portable, recorded_name
from linformer_kit.data.labelled import load_measured, metrics_of, task_of
from linformer_kit.environment import versions
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.writing import whole_folder
from linformer_kit.inference.batches import together
from linformer_kit.inference.classifier import Classifier, read_labels, trained_columns
from linformer_kit.inference.scores import (
    answers_of,
    by_class,
    confusion,
    losses,
    mistakes,
    scores,
)
from linformer_kit.report.classification import write_evaluation_report


def evaluate(settings: EvaluateSettings) -> dict[str, Any]:
    """Evaluate a classifier.

    Args:
        settings: The classifier, the labelled texts and the options.

    Returns:
        The results, as written to `metrics.json` if there is an output_dir, and the worst mistakes.

    Raises:
        InputError: for texts, classes, a model or a folder that cannot be used.
    """
    folder = None if settings.output_dir is None else check_new_folder("output_dir", settings.output_dir)
    examples, labels, columns = load_measured(settings, read_labels(settings.model), trained_columns(settings.model))
    right = np.array([labels.target(example, column=columns.label) for example in examples])
    classifier = Classifier(settings)
    parts = []
    with tqdm(total=len(examples), unit=" texts", dynamic_ncols=True, delay=2) as bar:
        for group in together((example.text, example.text_pair) for example in examples):
            parts.append(classifier(group))
            bar.update(len(group))
    logits, lost = map(np.concatenate, zip(*parts, strict=True))
    answers = answers_of(logits, multi_label=labels.multi_label, threshold=settings.threshold)
    results: dict[str, Any] = {
        "command": "evaluate",
        "model": recorded_name(settings.model),
        "texts": {
            "count": len(examples),
            "labels": list(labels.names),
            "cut": int((lost > 0).sum()),
            "lost_tokens": int(lost.sum()),
        },
        "metrics": {
            **scores(answers, right, metrics_of(labels, task_of(settings)), len(labels.names)),
            "loss": float(losses(logits, right).mean()),
        },
        "by_class": by_class(answers, right, len(labels.names)),
        "confusion": None if labels.multi_label else confusion(answers, right, len(labels.names)),
        "mistakes": mistakes(logits, answers, right, examples, labels),
        "settings": portable(settings),
        "versions": versions(),
    }
    if folder is not None:
        with whole_folder(folder) as part:
            write_evaluation_report(results, part)
    return results
