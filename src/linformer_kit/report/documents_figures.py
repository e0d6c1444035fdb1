"""Figures of `bench documents`: quality against cost, and recall by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from linformer_kit.report.documents_names import method_label, position_labels
from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, save_figure, show_grid

_MARKERS = "osD^vP"  # one for each method that is drawn
_LEAVE_FIRST = "pieces_overlapping"  # of more methods than markers
_QUALITY = {
    "agreement": ("cosine", "cosine to pieces"),
    "late_sentence": ("recall@1", "late sentence: recall at 1"),
    "passkey": ("recall@1", "passkey: accuracy at 1"),
    "needle": ("recall@1", "needle: accuracy at 1"),
    "same_document": ("recall@1", "same document: recall at 1"),
    "classification": ("accuracy", "classification: accuracy"),
}

Points = dict[str, list[tuple[float, float, int]]]  # seconds, quality and n of each method


def drawn_methods(results: dict[str, Any]) -> list[str]:
    """The methods of the figures, at most six."""
    names = list(results["methods"])
    if len(names) > len(_MARKERS):
        names = [name for name in names if name != _LEAVE_FIRST]
    return names[: len(_MARKERS)]


def draw_documents(results: dict[str, Any], folder: Path) -> None:
    """Write `documents_cost.png` and `documents_positions.png`, as far as there are numbers for them."""
    panels = {task: _points(results, task) for task in results["scores"]}
    panels = {task: points for task, points in panels.items() if points}
    if panels:
        _draw_cost(results, panels, folder / "documents_cost.png")
    longest = str(max(results["settings"]["lengths"]))
    late = results["scores"].get("late_sentence", {})
    found = {name: scores[longest]["positions"] for name, scores in late.items() if longest in scores}
    if found and len(results["positions"]) > 1:
        _draw_positions(results, found, folder / "documents_positions.png")


def _points(results: dict[str, Any], task: str) -> Points:
    measure = _QUALITY[task][0]
    points: Points = {}
    for name in drawn_methods(results):
        costs, scores = results["cost"].get(name, {}), results["scores"][task].get(name, {})
        both = [n for n in costs if measure in scores.get(n, {})]
        if both:
            points[name] = sorted((costs[n]["median_s"], scores[n][measure], int(n)) for n in both)
    return points


def _style(results: dict[str, Any], name: str) -> dict[str, Any]:
    number = drawn_methods(results).index(name)
    return {"marker": _MARKERS[number], "color": colormaps["tab10"](number), "label": method_label(name)}


def _draw_cost(results: dict[str, Any], panels: dict[str, Points], path: Path) -> None:
    """Plot a panel for each task, a line for each method and a point for each n; markers grow with n."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure((2.6 + 3.9 * columns, 0.6 + 3.4 * rows), rows, columns, squeeze=False)
    lengths = sorted({n for points in panels.values() for line in points.values() for *_, n in line})
    for axis, (task, points) in zip(axes.flat, panels.items(), strict=False):
        for name, line in points.items():
            line = sorted(line, key=lambda point: point[2])
            style = _style(results, name)
            axis.plot(*zip(*((x, y) for x, y, _ in line), strict=True), linewidth=1.3, color=style["color"], zorder=2)
            sizes = [16 + 22 * lengths.index(n) for *_, n in line]
            xs, ys, _ = zip(*line, strict=True)
            axis.scatter(xs, ys, s=sizes, marker=style["marker"], color=style["color"], label=style["label"], zorder=3)
        _cost_axes(axis, _QUALITY[task][1])
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    heading = "n in tokens, small to\nlarge markers:\n" + ", ".join(f"{n:,}" for n in lengths)
    figure.legend(
        handles.values(),
        handles,
        loc="outside right center",
        fontsize=9,
        title=heading,
        title_fontsize=9,
        frameon=False,
    )
    save_figure(figure, path)


def _cost_axes(axis: Axes, title: str) -> None:
    axis.set_xscale("log")
    log_ticks(axis.xaxis)
    axis.xaxis.set_minor_locator(NullLocator())
    number_ticks(axis.xaxis, "g")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("seconds per document")
    show_grid(axis)


def _draw_positions(results: dict[str, Any], found: dict[str, Any], path: Path) -> None:
    """Plot recall at 1 by the position of the sentence, a line for each method."""
    figure, axis = new_figure((8.6, 4.4))
    labels = position_labels(results)
    for name in drawn_methods(results):
        if name in found:
            recalls = [position["recall@1"] for position in found[name]]
            axis.plot(range(len(labels)), recalls, linewidth=1.5, markersize=5, **_style(results, name))
    axis.set_xticks(range(len(labels)), labels)
    axis.set_xlabel("position of the sentence in its text (tokens)")
    axis.set_ylabel("late sentence: recall at 1")
    number_ticks(axis.yaxis, ".0%")
    axis.set_ylim(bottom=0)
    show_grid(axis)
    handles = axis.get_legend_handles_labels()[0]
    heading = f"n {max(results['settings']['lengths']):,} tokens"
    figure.legend(
        handles=handles, loc="outside right center", fontsize=9, title=heading, title_fontsize=9, frameon=False
    )
    save_figure(figure, path)
