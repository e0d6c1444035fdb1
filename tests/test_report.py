"""Tables and figures come from the JSON alone, and survive hostile text."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from linformer_kit.report import (
    draw_context_mappings,
    draw_projections,
    pretrain_markdown,
    write_pretrain_report,
)

MODEL = {
    "parameters": 710_528,
    "projection_matrices": 4,
    "updates": 20,
    "validation_loss": 2.0,
    "curve": [(0, 7.0), (10, 3.0), (20, 2.0)],
    "tokens_per_second": 1234.5,
    "guesses": [{"text": "a | `b` <mask>", "answer": "c|d", "guesses": [("e`", 0.5), ("\n ", 0.25)]}],
}
RESULTS = {
    "unigram_entropy": 6.0,
    "corpus": {
        "description": "13 files",
        "vocab_size": 2048,
        "seq_len": 23,
        "train_sequences": None,
        "validation_sequences": 1281,
    },
    "models": {"linformer": MODEL, "full": {**MODEL, "validation_loss": 1.0}},
}


def test_markdown_holds_the_numbers():
    text = pretrain_markdown(RESULTS)
    assert "| Linformer | 710,528 | 20 | 2.000 | 7.4 | 1,234 |" in text
    assert "| Transformer (full attention) | 710,528 | 20 | 1.000 | 2.7 | 1,234 |" in text
    assert "| unigram (token frequencies alone) |  |  | 6.000 | 403.4 |  |" in text
    assert "a stream to train and 1,281 to validate" in text


def test_guesses_do_not_break_the_table():
    rows = [line for line in pretrain_markdown(RESULTS).splitlines() if "<mask>" in line]
    assert len(rows) == 2
    for row in rows:
        assert row.count("|") == 4 and r'`` "e`" `` 50%, `"\n "` 25%' in row


@pytest.mark.parametrize("loss", [2.0, 1e4])
def test_files(tmp_path, loss):
    results = copy.deepcopy(RESULTS)
    results["models"]["linformer"]["curve"][0] = (0, loss)
    text = write_pretrain_report(results, tmp_path)
    assert (tmp_path / "metrics.md").read_text() == text
    assert Image.open(tmp_path / "perplexity.png").size == (1050, 675)


INSPECTED = {"attention": "linformer", "projection": "linear", "layers": [1], "heads": [0]}


@pytest.fixture
def drawn(monkeypatch):
    """The axes of figures that the code under test has closed."""
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    return lambda: figures[-1].axes[0]


def test_long_and_strange_tokens_stay_labels(tmp_path, drawn):
    labels = {
        "short": "short",
        "\n\t ": r"\n\t ",
        "déjà": "déjà",
        "a" * 99: "a" * 16 + "…",
        "中文中": r"\u4e2d\u6587…",
        "\U0001fae8": r"\U0001fae8",
        "$x$": "$x$",
        "\\n": r"\\n",
    }
    mappings = np.full((1, 1, len(labels), 3), 1 / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a glyph that the font lacks
        draw_context_mappings({**INSPECTED, "tokens": list(labels)}, mappings, tmp_path / "drawn.png")
    shown = [label.get_text().replace(r"\$", "$") for label in drawn().get_yticklabels()]
    assert shown == list(labels.values())


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots_are_counted_in_whole_numbers(tmp_path, slots, drawn):
    draw_context_mappings({**INSPECTED, "tokens": ["a"] * 50}, np.ones((1, 1, 50, slots)), tmp_path / "drawn.png")
    ticks = [tick for tick in drawn().get_xticks() if -0.5 <= tick <= slots - 0.5]
    assert ticks == list(range(slots))


def test_missing_slots_are_grey_and_count_for_nothing(tmp_path, drawn):
    mappings = np.full((1, 1, 5, 4), 0.5)
    mappings[..., 2:] = np.nan
    draw_context_mappings({**INSPECTED, "tokens": ["a"] * 5}, mappings, tmp_path / "drawn.png")
    image = drawn().images[0]
    assert image.get_clim() == (0, 0.5)
    there, missing = image.to_rgba(image.get_array())[0, [0, 3]]
    assert 0 < missing[0] == missing[1] == missing[2] < 1 == missing[3]
    assert len(set(there[:3])) > 1


@pytest.mark.parametrize(("projection", "label"), [("mean_pool", "slot, by its place in the text"), ("random", "slot")])
def test_only_slots_with_a_place_have_one(tmp_path, projection, label, drawn):
    results = {**INSPECTED, "projection": projection, "tokens": ["a"] * 5}
    draw_context_mappings(results, np.ones((1, 1, 5, 3)), tmp_path / "drawn.png")
    assert drawn().get_xlabel() == label


def _image(matrix: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(name="E", matrix=matrix, rows="slot", columns="position", order=np.arange(len(matrix)))


def test_large_matrices_are_averaged(tmp_path, drawn):
    """Single columns among thousands, which pixels that pick the nearest would miss, stay visible."""
    matrix = np.zeros((3, 9973))
    matrix[:, ::97] = 1
    draw_projections([_image(matrix)], tmp_path / "drawn.png")
    row = np.asarray(Image.open(tmp_path / "drawn.png").convert("RGB")).astype(int)[200]
    inside = row[150:600]
    blueish = inside[:, 2] - inside[:, 0]
    assert (blueish > 0).sum() > 80


def test_small_matrices_are_crisp(tmp_path, drawn):
    """Not even between one and three pixels for a number do neighbours run into each other."""
    matrix = np.zeros((3, 293))
    matrix[:, ::2] = 1
    draw_projections([_image(matrix)], tmp_path / "drawn.png")
    row = np.asarray(Image.open(tmp_path / "drawn.png").convert("RGB"))[200, 150:600]
    assert len(np.unique(row, axis=0)) == 2
