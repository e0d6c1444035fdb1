"""What is free beside a classifier: the most frequent class, and a logistic regression on words alone."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import hstack, spmatrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from linformer_cli.errors import InputError
from linformer_kit.data.corpus import split
from linformer_kit.data.labelled import ACCURACY, Columns, Example, Labels, sample
from linformer_kit.inference.scores import Targets, measures

_STRENGTHS = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)  # C: inverse strengths of the regularisation
MOST_TEXTS = 20_000  # texts to learn from, so that it costs little beside a training
_FEW_TEXTS = 500  # from which its time is estimated


def free_results(
    answers: Targets,
    targets: Targets,
    labels: Labels,
    columns: Columns,
    *,
    train: Sequence[Example],
    measured: Sequence[Example],
    validation: Sequence[Example] = (),
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Metrics of answers that cost nothing, on the texts of a classifier's answers.

    Args:
        answers: The classifier's answers for the texts of `measured`.
        targets: Their classes.
        labels: All classes.
        columns: The columns of the texts, for errors.
        train: Labelled texts to learn from; without them, classes are counted in `measured`.
        measured: The texts that are measured.
        validation, seconds: As for `words_alone`.

    Returns:
        `most_frequent`: metrics of the most frequent class, or for multi-label texts of 0 or 1 for each class;
        `words`: metrics of a regression on one and two words in succession (TF-IDF), with the seconds that it took;
        `more_than_words`: the accuracy of the classifier minus that of the regression, and its standard error, by
        text. The last two are None without texts to learn from.
    """
    known = labels.targets(train, column=columns.label) if train else targets
    most = (known.mean(axis=0) > 0.5).astype(np.int64) if labels.multi_label else np.bincount(known).argmax()
    constant = np.broadcast_to(most, targets.shape)
    found: dict[str, Any] = {"most_frequent": measures(constant, targets, labels.metrics)}
    limits: dict[str, Any] = {"validation": validation, "seconds": seconds}
    by_words = words_alone(train, measured, labels, columns, **limits) if train else None
    if by_words is None:
        return found | {"words": None, "more_than_words": None}
    of_words, described = by_words
    more = _right(answers, targets) - _right(of_words, targets)
    error = float(more.std() / np.sqrt(len(more)))
    return found | {
        "words": measures(of_words, targets, labels.metrics) | described,
        "more_than_words": {ACCURACY: float(more.mean()), "standard_error": error},
    }


def words_alone(
    train: Sequence[Example],
    measured: Sequence[Example],
    labels: Labels,
    columns: Columns,
    *,
    validation: Sequence[Example] = (),
    seconds: float = math.inf,
) -> tuple[Targets, dict[str, Any]] | None:
    """The answers of a logistic regression on one and two words in succession (TF-IDF), learnt from labelled texts.

    Args:
        train: Labelled texts to learn from; at most 20,000 of them are used.
        measured: The texts to answer.
        labels: All classes.
        columns: The columns of the texts, for errors.
        validation: Labelled texts that the strength of regularisation is chosen on; default: a tenth of `train`.
        seconds: Time that it may take; it learns from half of the texts, or a quarter, …, where all would take longer
            by the time of 500 texts, which it may take always.

    Returns:
        The answers, and its `strength`, `texts` to learn from and `seconds`; None if texts have no words to learn.
    """
    train, began = sample(list(train), MOST_TEXTS), time.monotonic()
    if len(train) > _FEW_TEXTS and math.isfinite(seconds):
        few, few_measured, few_chosen = (sample(list(each), _FEW_TEXTS) for each in (train, measured, validation))
        words_alone(few, few_measured, labels, columns, validation=few_chosen)
        asked = len(measured) + len(validation)
        spent, count = time.monotonic() - began, len(train)
        by_text = spent / sum(map(len, (few, few_measured, few_chosen)))
        while count > _FEW_TEXTS and by_text * (count + asked) > seconds - spent:
            count //= 2
        train = sample(train, max(count, _FEW_TEXTS))
    if not validation:
        try:
            parts = split((each.joined for each in train), fraction=0.1, seed=0, name="train_file")
        except InputError:  # all texts are equal
            return None
        train, validation = ([train[index] for index in part] for part in parts)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    try:
        words.fit(text for each in train for text in each.texts)
    except ValueError:  # no two texts have a word in common
        return None
    learnt, chosen = (labels.targets(side, column=columns.label) for side in (train, validation))
    if len(np.unique(learnt, axis=0)) < 2:
        return None
    inputs, held_out, asked = (_features(words, side) for side in (train, validation, measured))
    best, answers, strength = -1.0, learnt, 0.0
    regression = LogisticRegression(solver="liblinear")  # ten times as fast as the default with so many words
    model = OneVsRestClassifier(regression)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that all texts have, and of fits that end early
        for each in _STRENGTHS:
            regression.set_params(C=each)
            # Without `reshape`, answers to a single class that texts may have lack their axis of classes.
            accuracy = _right(model.fit(inputs, learnt).predict(held_out).reshape(chosen.shape), chosen).mean()
            if accuracy > best:
                best, strength = accuracy, each
                answers = model.predict(asked).reshape(-1, *chosen.shape[1:])
    return answers, {"strength": strength, "texts": len(train), "seconds": time.monotonic() - began}


def _right(answers: Targets, targets: Targets) -> np.ndarray:
    """1.0 for each text whose answer is right in all classes, else 0.0."""
    return (answers == targets).reshape(len(targets), -1).all(axis=1).astype(np.float64)


def _features(words: TfidfVectorizer, examples: Sequence[Example]) -> spmatrix:
    """A row for each example; of pairs, the words of the second text have columns of their own."""
    return hstack([words.transform(texts) for texts in zip(*(each.texts for each in examples), strict=True)]).tocsr()
