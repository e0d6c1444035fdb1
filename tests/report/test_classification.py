"""Reports of classifiers: difficult class names, and more classes than rows of a table."""

from __future__ import annotations

import warnings

import pytest

from linformer_kit.report.classification import best_run, class_table, draw_confusion, shown_mistakes


@pytest.mark.parametrize("names", [["$^$", "a" * 500], ["好", "_"], [f"class {n}" for n in range(31)]])
def test_any_names_can_be_drawn(names, tmp_path):
    matrix = [[3 * (row == column) + row for column in range(len(names))] for row in range(len(names))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_confusion(matrix, names, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_run_has_the_least_loss_or_the_largest_metric():
    runs = [{"metrics": {"accuracy": 0.5, "loss": 0.1}}, {"metrics": {"accuracy": 0.6, "loss": 0.2}}]
    assert best_run({"metric_for_best_model": "loss", "runs": runs}) is runs[0]
    assert best_run({"metric_for_best_model": "accuracy", "runs": runs}) is runs[1]


def test_of_many_classes_the_most_frequent_are_shown():
    each = [{"precision": 1.0, "recall": 1.0, "f1": 1.0, "texts": float(n)} for n in range(33)]
    lines = class_table({"by_class": each}, [f"c{n}" for n in range(33)])
    assert lines[2].startswith("| `c32` |") and "`c2`" not in "".join(lines)
    assert lines[-1] == "The 30 most frequent of 33 classes; metrics.json has all."
    few = class_table({"by_class": each[:3]}, ["x", "y", "z"])
    assert [line.split("`")[1] for line in few[2:]] == ["x", "y", "z"]


def test_mistakes_are_cut_short_and_pairs_shown_together():
    mistake = {"text": "a|b" * 99, "text_pair": "second", "label": "x", "predicted": "y", "loss": 1.234}
    line = shown_mistakes([mistake])[2]
    assert "¦" in line and "…" in line and line.endswith("| `x` | `y` | 1.23 |") and len(line) < 220
    assert "first / second" in shown_mistakes([{**mistake, "text": "first"}])[2]
