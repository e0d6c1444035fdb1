"""What is free beside a classifier, against answers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.data.labelled import Columns, Example, Labels
from linformer_kit.inference.baselines import free_results, words_alone
from linformer_kit.report.classification import free_lines

COLUMNS, LABELS = Columns("text"), Labels(("a", "b", "c"))


def texts(*each: tuple[str, ...], pair: str | None = None, multi_label: bool = False) -> list[Example]:
    return [
        Example(f"line {n}", text, pair and f"{pair} {n}", values, multi_label)
        for n, (text, *values) in enumerate(each)
    ]


def labelled(count: int) -> list[Example]:
    """Texts whose class one pair of words decides: c is frequent."""
    kinds = (("not good", "a"), ("good not", "b"), ("so so", "c"), ("so", "c"))
    return texts(*((f"film {n % 7} {kinds[n % 4][0]}", kinds[n % 4][1]) for n in range(count)))


@pytest.mark.parametrize("validation", [labelled(8), []], ids=["validation", "held out"])
def test_words_and_the_most_frequent_class(validation):
    measured = labelled(40)
    targets = np.array([LABELS.names.index(each.values[0]) for each in measured])
    answers = np.where(np.arange(40) < 2, 0, targets)  # the second is wrong
    found = free_results(
        answers, targets, LABELS, COLUMNS, train=labelled(200), measured=measured, validation=validation
    )
    assert found["most_frequent"] == pytest.approx({"accuracy": 0.5, "macro_f1": (2 / 3) / 3})
    assert found["words"]["accuracy"] == 1.0, "pairs of words tell a from b"
    error = np.sqrt(1 / 40 * 39 / 40 / 40)
    assert found["more_than_words"] == pytest.approx({"accuracy": -1 / 40, "standard_error": error})
    alone = free_results(answers, targets, LABELS, COLUMNS, train=[], measured=measured)
    assert alone["most_frequent"]["accuracy"] == 0.5 and alone["words"] is None


def test_several_classes_of_pairs():
    """The second texts of pairs, and classes by class; a class that all texts have is no error."""
    labels = Labels(("x", "y", "z"), multi_label=True)
    every = texts(
        *(("up" if n % 2 else "down", *(("x", "z") if n % 2 else ("z",))) for n in range(40)),
        pair="same",
        multi_label=True,
    )
    targets = np.array([labels.target(each, column="label") for each in every])
    found = free_results(targets, targets, labels, COLUMNS, train=every, measured=every, validation=every)
    assert found["words"]["accuracy"] == 1.0 and found["most_frequent"]["accuracy"] == 0.5
    assert found["more_than_words"] == {"accuracy": 0.0, "standard_error": 0.0}


def test_a_single_class_that_a_text_may_have():
    labels = Labels(("a",), multi_label=True)
    every = texts(*(("up", "a") if n % 3 else ("down",) for n in range(45)), multi_label=True)
    targets = np.array([labels.target(each, column="label") for each in every])
    found = free_results(targets, targets, labels, COLUMNS, train=every, measured=every, validation=every)
    assert found["words"]["accuracy"] == found["words"]["micro_f1"] == 1.0
    assert found["more_than_words"] == {"accuracy": 0.0, "standard_error": 0.0}
    assert found["most_frequent"] == pytest.approx({"micro_f1": 0.8, "macro_f1": 0.8, "accuracy": 2 / 3})


@pytest.mark.parametrize("text", ["x", "."])
def test_texts_without_words_have_no_regression(text):
    few = texts((text, "a"), (text, "b"))
    assert free_results(np.array([0, 1]), np.array([0, 1]), LABELS, COLUMNS, train=few, measured=few)["words"] is None


@pytest.mark.parametrize(("seconds", "used"), [(1e-9, range(500, 501)), (1e9, range(1100, 1101))])
def test_words_learn_from_fewer_texts_where_all_would_take_too_long(seconds, used):
    many = labelled(1100)
    answers, described = words_alone(many, labelled(8), LABELS, COLUMNS, validation=labelled(8), seconds=seconds)
    assert described["texts"] in used and len(answers) == 8


def test_the_report_says_whether_the_classifier_is_better_than_words():
    """By two standard errors."""
    results = {"metrics": {"accuracy": 0.9, "loss": 0.1}, "accuracy_interval": (0.8, 0.95)}
    results["calibration"] = {"expected_error": 0.01}
    free = {"words": {"accuracy": 0.9, "texts": 7}, "most_frequent": {"accuracy": 0.5}}
    for difference, said in ((0.021, "is more accurate than"), (0.02, "is **not** clearly more"), (-0.5, "**not**")):
        more = {"accuracy": difference, "standard_error": 0.01}
        lines = free_lines(results | {"free": free | {"more_than_words": more}})
        assert any(said in line and f"{difference:+.3f} ± 0.010" in line for line in lines)
