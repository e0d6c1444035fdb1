"""Figures of time and memory saved, and of time per token."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter

from linformer_kit.report.efficiency_entries import Cell, ordered
from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, save_figure, show_grid

_PANELS = {
    "full": "against SDPA (ours)",
    "roberta": "against SDPA (RobertaModel)",
    "eager": "against eager attention",
}
_LABELS = {"full": "Transformer, SDPA (ours)", "roberta": "Transformer, SDPA (HF)", "eager": "Transformer, eager"}
_MARKERS = {"full": "^", "roberta": "v", "eager": "s"}
_GREYS = {"full": "black", "roberta": "dimgray", "eager": "darkgray"}
_TICKS, _MORE_TICKS = (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)  # more ticks for ranges below a factor of ten

_MOST_DIMS = 3  # beside the three Transformers, or their own dashed lines of the paper

Point = tuple[int, float, bool]  # n, height, whether extrapolated


def draw_efficiency(results: dict[str, Any], folder: Path) -> None:
    """Write `time_saved.png`, `time_per_token.png` and, if memory was measured, `memory_saved.png`; as SVG too.

    They have lines for three values of k at most.
    """
    for name in ("time_saved", "memory_saved"):  # of overwritten results
        for suffix in (".png", ".svg"):
            (folder / name).with_suffix(suffix).unlink(missing_ok=True)
    if results["settings"]["baselines"]:
        _draw_saved(results, "time_saved", "time saved (Transformer / Linformer)", folder / "time_saved.png")
        if results["settings"]["memory"]:
            label = "largest batch (Linformer / Transformer)"
            _draw_saved(results, "memory_saved", label, folder / "memory_saved.png")
    _draw_time_per_token(results, folder / "time_per_token.png")


def _draw_saved(results: dict[str, Any], field: str, label: str, path: Path) -> None:
    """Plot a panel for each baseline with a line for some k; the paper's figures are dashed in the same colour."""
    names = ordered(results["settings"]["baselines"])
    figure, axes = new_figure((1.6 + 3.9 * len(names), 4.3), 1, len(names), squeeze=False, sharey=True)
    colours = _colours(results["cells"])
    for axis, name in zip(axes[0], names, strict=True):
        for k, colour in colours.items():
            cells = [cell for cell in results["cells"] if cell["projected_dim"] == k]
            saved = [(cell["seq_len"], cell[field].get(name)) for cell in cells]
            points = [(n, of["ratio"], of["extrapolated"]) for n, of in saved if of is not None]
            _line(axis, points, color=colour, marker="o")
            paper = f"paper_{field}"
            published = [(cell["seq_len"], cell[paper]) for cell in cells if cell[paper] is not None]
            if published:
                axis.plot(*zip(*published, strict=True), color=colour, linestyle="--", linewidth=1)
        axis.axhline(1, color="gray", linewidth=1)
        axis.set_title(_PANELS[name], fontsize=10)
        _scales(axis, results["cells"])
    axes[0, 0].set_ylabel(label)
    number_ticks(axes[0, 0].yaxis, "g", unit="×")
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=4, label=f"k {k:,}") for k, colour in colours.items()
    ]
    if any(cell[f"paper_{field}"] for cell in results["cells"]):
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1, label="paper"))
    figure.legend(handles=handles + _hollow(results), loc="outside right center", fontsize=9)
    save_figure(figure, path, vector=True)


def _draw_time_per_token(results: dict[str, Any], path: Path) -> None:
    """Plot time per token: a line for some k and each Transformer."""
    figure, axis = new_figure((7.8, 4.6))
    for k, colour in _colours(results["cells"]).items():
        cells = [cell for cell in results["cells"] if cell["projected_dim"] == k]
        _line(axis, _per_token(cells), color=colour, marker="o", label=f"Linformer, k {k:,}")
    for name in ordered(results["settings"]["baselines"]):
        entries = [entry for entry in results["baselines"] if entry["name"] == name]
        _line(axis, _per_token(entries), color=_GREYS[name], marker=_MARKERS[name], label=_LABELS[name])
    _scales(axis, results["cells"])
    axis.set_ylabel("time per token and layer, µs")
    number_ticks(axis.yaxis, ",g")
    handles = axis.get_legend_handles_labels()[0]
    figure.legend(handles=[*handles, *_hollow(results)], loc="outside right center", fontsize=9)
    save_figure(figure, path, vector=True)


def _per_token(entries: Iterable[Cell]) -> list[Point]:
    field = "seconds_per_token_layer"
    return [(entry["seq_len"], entry[field] * 1e6, entry["extrapolated"]) for entry in entries if field in entry]


def _line(axis: Axes, points: list[Point], *, marker: str, color: Any, label: str | None = None) -> None:
    """Plot a line through points ordered by n; extrapolated points are hollow, and the line to them is dotted."""
    if not points:
        return
    points = sorted(points)
    for (n1, height1, guessed1), (n2, height2, guessed2) in itertools.pairwise(points):
        style = ":" if guessed1 or guessed2 else "-"
        axis.plot([n1, n2], [height1, height2], color=color, linestyle=style, linewidth=1.6, zorder=2)
    for hollow in (False, True):
        chosen = [(n, height) for n, height, extrapolated in points if extrapolated is hollow]
        if chosen:
            face = "white" if hollow else color
            lengths, heights = zip(*chosen, strict=True)
            axis.plot(lengths, heights, linestyle="", marker=marker, markersize=4.5, color=color, mfc=face, zorder=3)
    axis.plot([], [], color=color, marker=marker, markersize=4.5, label=label)  # for the legend


def _hollow(results: dict[str, Any]) -> list[Line2D]:
    """The legend entry of extrapolated points, if there are any."""
    memories = [entry["memory"] for entry in results["baselines"] if entry["memory"]]
    if not any(entry["extrapolated"] for entry in results["baselines"] + memories):
        return []
    return [Line2D([], [], color="black", linestyle=":", marker="o", markersize=4.5, mfc="white", label="extrapolated")]


def _scales(axis: Axes, cells: list[Cell]) -> None:
    """Make both axes logarithmic, with numbers written in full."""
    lengths = sorted({cell["seq_len"] for cell in cells})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(FixedLocator(lengths))
    number_ticks(axis.xaxis, ",.0f")
    axis.tick_params(axis="x", labelrotation=45, labelsize=8)
    lowest, highest = axis.get_ylim()
    log_ticks(axis.yaxis, _TICKS if highest > 10 * lowest else _MORE_TICKS)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("n, tokens in a sequence")
    show_grid(axis)


def _colours(cells: list[Cell]) -> dict[int, Any]:
    """The values of k that are drawn, from the smallest to the largest, with their colours; the tables have all."""
    dims = sorted({cell["projected_dim"] for cell in cells})
    if len(dims) > _MOST_DIMS:
        dims = [dims[index * (len(dims) - 1) // (_MOST_DIMS - 1)] for index in range(_MOST_DIMS)]
    return {k: colormaps["viridis"](0.9 * index / max(1, len(dims) - 1)) for index, k in enumerate(dims)}
