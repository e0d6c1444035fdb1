"""Metrics against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logit

from linformer_kit.data.labelled import Example, Labels
from linformer_kit.inference import scores as s

# Class 0 four times, 1 three times, 2 never; two mistakes.
TARGETS = np.array([0, 0, 0, 0, 1, 1, 1])
CHANCES = np.eye(3)[[0, 0, 0, 1, 1, 1, 2]] * 0.7 + 0.1
LABELS = Labels(("a", "b", "c"))
ANSWERS = s.answers_of(np.log(CHANCES), multi_label=False)


def test_metrics_of_one_class():
    found = s.scores(np.log(CHANCES), ANSWERS, TARGETS, ("accuracy", "macro_f1", "micro_f1"))
    first, second = 2 * 3 / (3 + 4), 2 * 2 / (3 + 3)
    loss = -(5 * np.log(0.8) + 2 * np.log(0.1)) / 7
    expected = {"accuracy": 5 / 7, "macro_f1": (first + second + 0) / 3, "micro_f1": 5 / 7, "loss": loss}
    assert found == pytest.approx(expected)


def test_how_sure_accuracy_and_probabilities_are():
    """Answers of probability 0.8, five of seven right; Wilson's bounds by his formula."""
    found = s.certainty(np.log(CHANCES), ANSWERS, TARGETS)
    assert found["calibration"]["expected_error"] == pytest.approx(0.8 - 5 / 7)
    assert found["calibration"]["bins"] == [pytest.approx([0.8, 5 / 7, 7])]
    z, n, share = 1.959964, 7, 5 / 7
    centre, half = share + z**2 / 2 / n, z * np.sqrt(share * (1 - share) / n + z**2 / 4 / n**2)
    assert found["accuracy_interval"] == pytest.approx([(centre + sign * half) / (1 + z**2 / n) for sign in (-1, 1)])
    logits, targets = logit(np.array([[0.9, 0.3], [1 - 1e-9, 0.3]])), np.array([[1.0, 1.0], [1.0, 0.0]])
    several = s.certainty(logits, s.answers_of(logits, multi_label=True), targets)["calibration"]
    assert several["bins"] == [pytest.approx([0.7, 0.5, 2]), pytest.approx([0.95, 1.0, 2])]
    assert several["expected_error"] == pytest.approx((0.2 * 2 + 0.05 * 2) / 4)


def test_each_class_and_each_pair():
    results = s.by_class(ANSWERS, TARGETS, LABELS)
    found = results["by_class"]
    assert found[0] == pytest.approx({"precision": 1.0, "recall": 0.75, "f1": 6 / 7, "texts": 4})
    assert found[2] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "texts": 0}
    assert results["confusion"] == [[3, 1, 0], [0, 2, 1], [0, 0, 0]]


def test_several_classes():
    targets = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    probabilities = np.array([[0.9, 0.1], [0.8, 0.3], [0.2, 0.6]])
    answers = s.answers_of(logit(probabilities), multi_label=True)
    found = s.scores(logit(probabilities), answers, targets, ("micro_f1", "macro_f1", "accuracy"))
    assert found.pop("loss") > 0
    assert found == pytest.approx({"micro_f1": 2 * 2 / (3 + 3), "macro_f1": (1 + 0) / 2, "accuracy": 1 / 3})
    assert s.losses(logit(probabilities), targets)[0] == pytest.approx(-np.log(0.9))
    assert s.answers_of(logit(probabilities), multi_label=True, threshold=0.7).tolist() == [[1, 0], [1, 0], [0, 0]]


def test_a_single_class_that_a_text_may_have():
    """Not the numbers of "does not have it", which scikit-learn takes for a second class."""
    targets, answers = np.array([[1.0], [1.0], [0.0], [0.0], [0.0]]), np.array([[1], [0], [0], [0], [1]])
    found = s.measures(answers, targets, ("micro_f1", "macro_f1", "accuracy"))
    assert found == pytest.approx({"micro_f1": 0.5, "macro_f1": 0.5, "accuracy": 3 / 5})
    (row,) = s.by_class(answers, targets, Labels(("a",), multi_label=True))["by_class"]
    assert row == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "texts": 2}


def test_the_worst_mistakes_stand_first():
    examples = [Example(f"line {n}", f"text {n}", None, ("a",), False) for n in range(7)]
    sure = CHANCES.copy()
    sure[6] = [0.05, 0.05, 0.9]
    found = s.mistakes(np.log(sure), ANSWERS, TARGETS, examples, LABELS)
    assert [each["source"] for each in found] == ["line 6", "line 3"]
    assert (found[0]["label"], found[0]["predicted"], found[0]["probability"]) == ("b", "c", pytest.approx(0.9))
    assert found[0]["loss"] == pytest.approx(-np.log(0.05))
    both = s.mistakes(
        logit(np.array([[0.9, 0.8]])),
        np.array([[1, 1]]),
        np.array([[1.0, 0.0]]),
        examples[:1],
        Labels(("a", "b"), multi_label=True),
    )
    assert (both[0]["label"], both[0]["predicted"]) == (["a"], ["a", "b"])
    assert both[0]["probability"] == pytest.approx({"a": 0.9, "b": 0.8})


def test_losses_of_a_wrong_answer_are_exact_however_sure_it_is():
    assert s.losses(np.array([[2000.0, 0.0]]), np.array([1])) == pytest.approx(2000)
    assert s.losses(np.array([[-2000.0]]), np.array([[1.0]])) == pytest.approx(2000)
