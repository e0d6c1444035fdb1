"""Tables and figures need only the results."""

from __future__ import annotations

import json
import math
import warnings

import pytest
from PIL import Image

from linformer_kit.report import classification, training
from linformer_kit.report import figures as figures_of
from linformer_kit.report.base import write_json
from linformer_kit.report.classification import draw_confusion
from linformer_kit.report.training import write_pretrain_report

RESULTS = {
    "command": "pretrain",
    "settings": {"seed": 3, "names": ["a name"]},
    "environment": {"device": "a processor"},
    "model": {"attention": "linformer", "causal": False, "parameters": 710_528},
    "corpus": {
        "description": "13 files",
        "vocab_size": 2048,
        "seq_len": 23,
        "train_sequences": 5003,
        "validation_sequences": 1281,
    },
    "updates": 20,
    "tokens_per_second": 1234.5,
    "validation_loss": 2.0,
    "unigram_entropy": 6.0,
    "curve": [(0, 7.0), (10, 3.0), (20, 2.0)],
    "training_curve": [(5, 5.0), (15, 2.5)],
    "guesses": [{"text": "in <mask> home", "word": " the", "tokens": [" the", "\n"], "probabilities": [0.6, 0.3]}],
}


@pytest.fixture(autouse=True)
def _drawn(drawn) -> None:
    """All figures."""


def test_the_picture_of_pretraining_names_the_loss_of_the_result(tmp_path, monkeypatch):
    """Which is not the last one where the best checkpoint is kept."""
    panels = []
    monkeypatch.setattr(training, "draw_curves", lambda drawn, *arguments, **options: panels.append(drawn))
    write_pretrain_report({**RESULTS, "validation_loss": 1.0}, tmp_path)
    (curves,) = panels[0].values()
    assert next(iter(curves)) == "Linformer, validation (2.7)"


def test_lists_of_numbers_stand_on_a_line_and_strings_stay(tmp_path):
    results = {"a": [1, 2.5, None], "b": [[1], [2, math.nan]], "c": ["[ 1,  2]\n", "x"], "d": {"e": []}, "f": "[\n 1 ]"}
    write_json(results, tmp_path / "results.json")
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text) == {**results, "b": [[1], [2, None]]}
    assert '"a": [1, 2.5, null],\n' in text and "    [2, null]\n" in text


def test_the_report_of_pretraining_holds_the_numbers(tmp_path):
    write_pretrain_report(RESULTS, tmp_path)
    text = (tmp_path / "metrics.md").read_text()
    assert "| Linformer | 710,528 | 20 | 2.000 | 7.4 | 1,234 |" in text
    assert "| unigram (token frequencies alone) |  |  | 6.000 | 403.4 |  |" in text
    assert "5,003 to train and 1,281 to validate" in text
    assert "| `in <mask> home` | `the` | `the` 60%, `'\\n'` 30% |" in text
    mixed = {"attention": ["full", "linformer", "full"], "causal": True, "parameters": 7}
    write_pretrain_report({**RESULTS, "model": mixed, "guesses": []}, tmp_path)
    text = (tmp_path / "metrics.md").read_text()
    assert "| Transformer (full attention) and Linformer | 7 |" in text and "masked" not in text
    write_pretrain_report({**RESULTS, "curve": [(0, 1e4), (20, 2.0)]}, tmp_path)  # a loss of any size is drawn
    assert Image.open(tmp_path / "perplexity.png").size == (900, 675)


@pytest.mark.parametrize("names", [["$^$", "a" * 500], ["好", "_"], [f"class {n}" for n in range(31)]])
def test_classes_of_any_names_can_be_drawn(names, tmp_path):
    matrix = [[3 * (row == column) + row for column in range(len(names))] for row in range(len(names))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_confusion(matrix, names, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_pretraining_has_the_training_loss_too(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(figures_of, "save_figure", lambda figure, path: figures.append(figure))
    write_pretrain_report(RESULTS, tmp_path)
    lines = {line.get_label(): line.get_xydata().tolist() for line in figures[0].axes[0].lines}
    assert [*lines] == ["Linformer, validation (7.4)", "token frequencies alone (403.4)", "Linformer, training batches"]
    assert lines["Linformer, training batches"] == [[5, math.exp(5)], [15, math.exp(2.5)]]


def test_classes_without_texts_or_answers_take_no_room(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(classification, "save_figure", lambda figure, path: figures.append(figure))
    draw_confusion([[2, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], ["a", "b", "c", "d"], tmp_path / "x.png")
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "c", "d"]
    assert axes.get_xlabel().endswith("\nclasses without texts, not shown: 1")
