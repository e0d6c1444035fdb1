"""Figures of inspections work for unusual tokens, large matrices and missing values."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from linformer_kit.report.inspection import draw_context_mappings, draw_projections

INSPECTED = {
    "attention": "linformer",
    "projection": "linear",
    "layers": [1],
    "heads": [0],
    "columns": {"global tokens": 0, "slots": 3, "neighbours": 0},
}


@pytest.fixture
def drawn(figures):
    """The axes of the last figure."""
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


def test_global_tokens_and_neighbours_are_set_apart(tmp_path, drawn):
    columns = {"global tokens": 2, "slots": 5, "neighbours": 4}
    draw_context_mappings(
        {**INSPECTED, "columns": columns, "tokens": ["a"] * 5}, np.ones((1, 1, 5, 11)), tmp_path / "a.png"
    )
    assert drawn().get_xlabel() == "2 global tokens, 5 slots, 4 neighbours"
    assert [line.get_xdata()[0] for line in drawn().lines] == [1.5, 6.5]


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
