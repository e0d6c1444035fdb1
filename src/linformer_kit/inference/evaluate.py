"""Evaluate a classifier on labelled texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from linformer_cli.output_paths import check_new_folder
from linformer_cli.settings import EvaluateSettings, model_label, without_local_paths
from linformer_kit.data.labelled import load_measured
from linformer_kit.files.writing import whole_folder
from linformer_kit.inference.baselines import free_results
from linformer_kit.inference.batches import size
from linformer_kit.inference.predict import Classifier, read_classifier
from linformer_kit.inference.scores import answers_of, by_class, certainty, mistakes, scores
from linformer_kit.report.classification import evaluation_lines, write_evaluation_report
from linformer_kit.report.environment import environment


def main(settings: EvaluateSettings) -> None:
    """Evaluate a classifier on labelled texts: print the results, and write them if there is an output_dir.

    Raises:
        InputError: for texts, classes, a model or a folder that cannot be used.
    """
    folder = None if settings.output_dir is None else check_new_folder("output_dir", settings.output_dir)
    trained = read_classifier(settings.model)
    examples, train, columns = load_measured(settings, trained.columns)
    found = {value for example in (*examples, *train) for value in example.values}
    labels = trained.labels.read_as(found) or trained.labels
    targets = labels.targets(examples, column=columns.label)
    classifier = Classifier(settings, trained)
    texts = [(example.text, example.text_pair) for example in examples]
    logits, lost = map(np.concatenate, zip(*classifier.groups(texts, sum(map(size, texts))), strict=True))
    answers = answers_of(logits, multi_label=labels.multi_label, threshold=settings.threshold)
    results: dict[str, Any] = {
        "command": "evaluate",
        "model": model_label(settings.model),
        "texts": {
            "count": len(examples),
            "labels": list(labels.names),
            "cut": int((lost > 0).sum()),
            "lost_tokens": int(lost.sum()),
        },
        "metrics": scores(logits, answers, targets, labels.metrics),
        **by_class(answers, targets, labels),
        **certainty(logits, answers, targets),
        "free": free_results(answers, targets, labels, columns, train=train, measured=examples),
        "mistakes": mistakes(logits, answers, targets, examples, labels),
        "settings": without_local_paths(settings),
        "environment": environment(classifier.device),
    }
    if folder is not None:
        with whole_folder(folder) as part:
            write_evaluation_report(results, part)
    print("\n".join(evaluation_lines(results)))
