"""Report on the inside of a model: which slots its heads attend to, and its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

from linformer_kit.report.base import code, table, write_report
from linformer_kit.report.figures import new_figure, save_figure
from linformer_kit.report.numbers import listed

_LABELLED_TOKENS = 32  # with more, the axis has no labels
_LONGEST_LABEL = 16  # characters; tokens can be long
_PIXELS = 300  # along the shorter side of a panel


def write_inspection_report(results: dict[str, Any], folder: Path) -> str:
    """Write `inspection.json` and `inspection.md`.

    Args:
        results: Results of `experiments.inspection.inspect`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "inspection", inspection_markdown)


def inspection_markdown(results: dict[str, Any]) -> str:
    """The number of effective slots of each head of each layer, as Markdown."""
    rows = [
        [f"layer {layer}", *(f"{slots:,.1f}" for slots in heads)]
        for layer, heads in enumerate(results["effective_slots"])
    ]
    header = ["", *(f"head {head}" for head in range(len(results["effective_slots"][0])))]
    kind = f"{results['projection']}, sharing {results['sharing']}, k {results['projected_dim']}"
    lines = [
        "# Inspection",
        "",
        f"Model: {code(results['model'])} ({kind if results['attention'] == 'linformer' else 'full attention'}). "
        f"Text: {results['text']}, {len(results['tokens']):,} tokens.",
        "",
        "Effective slots: exp of the entropy of the context mapping's rows, averaged over the tokens. 1: each token "
        "attends to one slot; the number of slots: to all slots equally. Global tokens and neighbours count as slots.",
        "",
        *table(header, rows),
        "",
        f"`inspection.npz` holds the context mappings of layers {listed(results['layers'])} and heads "
        f"{listed(results['heads'])} as `context_mappings[layer, head, token, slot]`, global tokens before the slots "
        "and neighbours after them, NaN for what a head lacks, and the matrices in `projections.png`, all with slots "
        "in the model's own order.",
    ]
    return "\n".join(lines) + "\n"


def draw_context_mappings(results: dict[str, Any], mappings: np.ndarray, path: Path) -> None:
    """Plot context mappings as images, a row for each layer and a column for each head.

    Args:
        results: As for `write_inspection_report`: layers, heads and tokens.
        mappings: `[layers, heads, tokens, slots]` to plot; NaN, drawn grey, for slots that a head lacks.
        path: Output file.
    """
    layers, heads, tokens, _ = mappings.shape
    figure, axes = new_figure((1.2 + 3 * heads, 0.8 + 3 * layers), layers, heads, squeeze=False, sharey=True)
    highest = float(np.nanquantile(mappings, 0.998)) or 1.0  # 0 if each token attends to one of very many slots
    for row, layer in enumerate(results["layers"]):
        for column, head in enumerate(results["heads"]):
            axis = axes[row, column]
            image = _draw_matrix(axis, mappings[row, column], f"layer {layer}, head {head}", "viridis", 0, highest)
    for axis in axes[:, 0]:
        if tokens <= _LABELLED_TOKENS:
            axis.set_yticks(range(tokens), [_label(token) for token in results["tokens"]], fontsize=6)
        axis.set_ylabel("token")
    full, placed = results["attention"] == "full", results["projection"] not in ("random", "dynamic")
    first, slots, near = results["columns"].values()
    for axis in axes.flat:
        for edge in (first, first + slots):
            if 0 < edge < first + slots + near:
                axis.axvline(edge - 0.5, color="white", linewidth=0.8)
    parts = [f"{count:,} {name}" for name, count in results["columns"].items() if count]
    beside = ", ".join(parts) if len(parts) > 1 else ""
    for axis in axes[-1]:
        axis.set_xlabel("token" if full else beside or ("slot, by its place in the text" if placed else "slot"))
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / layers), extend="max")
    bar.set_label("attention weight, P" if full else "attention weight, P̄")
    save_figure(figure, path)


def draw_projections(images: Sequence[Any], path: Path) -> None:
    """Plot matrices of projections as images, E and F side by side, each with its own colour scale.

    Args:
        images: `experiments.inspection.Image`s.
        path: Output file.
    """
    columns = 2 if any(" F" in image.name for image in images) else 1
    rows = -(-len(images) // columns)
    figure, axes = new_figure((5.5 * columns, 2.9 * rows), rows, columns, squeeze=False)
    for axis, image in zip(axes.flat, images, strict=True):
        highest = float(np.abs(image.matrix).max()) or 1.0
        drawn = _draw_matrix(axis, image.matrix[image.order], image.name, "RdBu", -highest, highest)
        axis.set_xlabel(image.columns)
        axis.set_ylabel(image.rows)
        figure.colorbar(drawn, ax=axis, label="weight")
    save_figure(figure, path)


def _draw_matrix(axis: Axes, matrix: np.ndarray, title: str, colours: str, lowest: float, highest: float) -> Any:
    """Plot a matrix: with sharp cells, or antialiased if it has more entries than pixels; NaN is grey."""
    cmap = colormaps[colours].with_extremes(bad="lightgrey")
    interpolation = "antialiased" if max(matrix.shape) > _PIXELS else "nearest"
    drawn = axis.imshow(matrix, aspect="auto", cmap=cmap, vmin=lowest, vmax=highest, interpolation=interpolation)
    axis.set_title(title, fontsize=10)
    for numbered in (axis.xaxis, axis.yaxis):
        numbered.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    return drawn


def _label(token: str) -> str:
    """A token as axis label: truncated, with escapes for characters that are invisible or not in the font."""
    font = get_font(findfont(FontProperties()))
    label = ""
    for character in token:
        seen = character.isprintable() and font.get_char_index(ord(character)) and character != "\\"
        shown = character if seen else character.encode("unicode_escape").decode()
        if len(label) + len(shown) > _LONGEST_LABEL:
            label += "…"
            break
        label += shown
    return label.replace("$", r"\$")  # else "$" would start a formula
