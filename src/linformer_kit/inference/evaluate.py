"""Evaluate a classifier on labelled texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tqdm import tqdm

from linformer_kit.data.labelled import load_measured, metrics_of, task_of
from linformer_kit.environment import versions
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.writing import whole_folder
from linformer_kit.inference.classifier import Classifier, read_labels, trained_columns
from linformer_kit.inference.scores import (
    by_class,
    check_threshold,
    confusion,
    losses,
    mistakes,
    predicted,
    scores,
)
from linformer_kit.report.classification import write_evaluation_report
from linformer_kit.settings import EvaluateSettings, portable, recorded_name


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
    check_threshold(settings.threshold)
    examples, labels, columns = load_measured(settings, read_labels(settings.model), trained_columns(settings.model))
    right = np.array([labels.target(example, column=columns.label) for example in examples])
    classifier = Classifier(settings)
    predictions = []
    bar = tqdm(total=len(examples), unit=" texts", dynamic_ncols=True, delay=2)
    with bar:
        for prediction in classifier((example.text, example.text_pair) for example in examples):
            predictions.append(prediction)
            bar.update()
    logits = np.stack([prediction.logits for prediction in predictions])
    probabilities = np.stack([prediction.probabilities for prediction in predictions])
    answers = predicted(probabilities, multi_label=labels.multi_label, threshold=settings.threshold)
    cut = [prediction.lost for prediction in predictions if prediction.lost]
    results: dict[str, Any] = {
        "command": "evaluate",
        "model": recorded_name(settings.model),
        "texts": {"count": len(examples), "labels": list(labels.names), "cut": len(cut), "lost_tokens": sum(cut)},
        "windows": sum(prediction.windows for prediction in predictions),
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
