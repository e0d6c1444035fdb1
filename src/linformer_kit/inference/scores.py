"""Metrics of classifiers: by the names in `data.labelled`, by class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from scipy.special import expit, logit, softmax
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from linformer_kit.data.labelled import ACCURACY, Example, Labels

_MISTAKES = 100
_BINS = 10  # of probabilities, from 0 to 1

Logits = Float[np.ndarray, "texts classes"]
Probabilities = Float[np.ndarray, "texts classes"]
Targets = Num[np.ndarray, " texts"] | Num[np.ndarray, "texts classes"]


def class_probabilities(logits: Logits, *, multi_label: bool) -> Probabilities:
    """Probabilities of the classes: softmax, or for multi-label texts the logistic function of each logit."""
    logits = logits.astype(np.float64)
    return expit(logits) if multi_label else softmax(logits, axis=1)


def answers_of(logits: Logits, *, multi_label: bool, threshold: float = 0.5) -> Targets:
    """The likeliest class of each text, or for multi-label texts 0 or 1 for each class, by its probability."""
    return (logits >= logit(threshold)).astype(np.int64) if multi_label else logits.argmax(axis=1)


def scores(logits: Logits, answers: Targets, targets: Targets, metrics: Sequence[str]) -> dict[str, float]:
    """The `measures`, and the mean `loss` of the logits in nats."""
    return measures(answers, targets, metrics) | {"loss": float(losses(logits, targets).mean())}


def measures(answers: Targets, targets: Targets, metrics: Sequence[str]) -> dict[str, float]:
    """Metrics by name, each between 0 and 1.

    Args:
        answers: The predicted classes, as from `answers_of`.
        targets: The true classes, likewise.
        metrics: `accuracy` (exact match for multi-label), `macro_f1` (mean over the classes that occur in targets or
            answers, as in scikit-learn; over all classes for multi-label), `micro_f1` (over all answers together).
    """

    def score(name: str) -> float:
        if name == ACCURACY:
            return accuracy_score(targets, answers)
        average = name.removesuffix("_f1")
        return f1_score(targets, answers, labels=_only_class(targets), average=average, zero_division=0.0)

    return {name: float(score(name)) for name in metrics}


def _only_class(targets: Targets) -> list[int] | None:
    """Which class to ask scikit-learn for: it takes a single column of 0 and 1 for two classes, of which 1 is ours."""
    return [1] if targets.shape[1:] == (1,) else None


def certainty(logits: Logits, answers: Targets, targets: Targets) -> dict[str, Any]:
    """How far the accuracy is known, and how far probabilities can be believed.

    Returns:
        `accuracy_interval`: bounds of the accuracy with 95 % confidence (Wilson), by the number of texts;
        `calibration`: `expected_error`, the mean distance between the probability of an answer and the share of right
        answers (Guo et al. 2017), and what it is made of, `bins` of probabilities: [mean probability, share of right
        answers, number of answers]. For multi-label texts, an answer is the yes or no for a class.
    """
    right = (answers == targets).reshape(len(targets), -1)
    interval = binomtest(int(right.all(axis=1).sum()), len(right)).proportion_ci(method="wilson")
    chances = class_probabilities(logits, multi_label=targets.ndim == 2)
    if targets.ndim == 2:
        sure = np.where(answers == 1, chances, 1 - chances)
    else:
        sure = np.take_along_axis(chances, answers[:, None], axis=1)
    places = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    bins = [
        [float(sure[chosen].mean()), float(right[chosen].mean()), int(chosen.sum())]
        for chosen in (places == place for place in range(_BINS))
        if chosen.any()
    ]
    error = sum(abs(chance - share) * count for chance, share, count in bins) / right.size
    return {
        "accuracy_interval": [float(interval.low), float(interval.high)],
        "calibration": {"expected_error": error, "bins": bins},
    }


def by_class(answers: Targets, targets: Targets, labels: Labels) -> dict[str, Any]:
    """Metrics of each class.

    Returns:
        `by_class`: precision, recall, F1 and the number of texts of each class; `confusion`: the number of texts of
        each true class (rows) with each predicted class (columns), None for multi-label texts.
    """
    classes = _only_class(targets) or range(len(labels.names))
    columns = precision_recall_fscore_support(targets, answers, labels=classes, average=None, zero_division=0.0)
    names = ("precision", "recall", "f1", "texts")
    matrix = None if labels.multi_label else confusion_matrix(targets, answers, labels=classes).tolist()
    rows = [dict(zip(names, map(float, values), strict=True)) for values in zip(*columns, strict=True)]
    return {"by_class": rows, "confusion": matrix}


def mistakes(
    logits: Logits, answers: Targets, targets: Targets, examples: Sequence[Example], labels: Labels
) -> list[dict[str, Any]]:
    """The misclassified texts, those with the highest loss first.

    Returns:
        At most a hundred: dicts of `source`, `text` (and `text_pair`), `label`, `predicted`, `probability` (of the
        prediction) and `loss` in nats; lists of classes, and probabilities by class, for multi-label texts.
    """
    probabilities, loss = class_probabilities(logits, multi_label=labels.multi_label), losses(logits, targets)
    wrong = np.flatnonzero((answers != targets).reshape(len(targets), -1).any(axis=1))
    listed = []
    for index in wrong[np.argsort(-loss[wrong], kind="stable")][:_MISTAKES]:
        example, predicted = examples[index], names_of(answers[index], labels)
        pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
        chances = dict(zip(labels.names, probabilities[index].tolist(), strict=True))
        chance = chances[predicted] if isinstance(predicted, str) else {name: chances[name] for name in predicted}
        listed.append(
            {
                "source": example.source,
                "text": example.text,
                **pair,
                "label": names_of(targets[index], labels),
                "predicted": predicted,
                "probability": chance,
                "loss": float(loss[index]),
            }
        )
    return listed


def names_of(target: Any, labels: Labels) -> str | list[str]:
    """The class of one target or prediction, or its list of classes for multi-label texts."""
    if labels.multi_label:
        return [name for name, yes in zip(labels.names, target, strict=True) if yes]
    return labels.names[int(target)]


def losses(logits: Logits, targets: Targets) -> Float[np.ndarray, " texts"]:
    """Negative log-likelihood of the true class of each text, in nats; for multi-label texts, the mean over classes."""
    outputs, expected = torch.from_numpy(logits).double(), torch.from_numpy(targets)
    if expected.dim() == 2:
        each = F.binary_cross_entropy_with_logits(outputs, expected.double(), reduction="none").mean(dim=1)
    else:
        each = F.cross_entropy(outputs, expected.long(), reduction="none")
    return each.numpy()
