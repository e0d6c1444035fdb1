"""The figure of `bench table2`: the accuracy of each model on each task, with each seed."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from linformer_kit.data.tasks import TASKS
from linformer_kit.report.base import shortened
from linformer_kit.report.figures import new_figure, save_figure, show_grid

_POINTS = 2.0  # so that a small difference does not look large
_NAME_CHARACTERS = 30


def draw_table2(results: dict[str, Any], folder: Path, chosen: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Write `accuracy.png` and `accuracy.svg`, with a panel for each task that a model was trained on; else nothing.

    Args:
        results: Results of `bench table2` so far.
        folder: Output folder.
        chosen: The cell to show for each model and task.
    """
    models = list(results["models"])
    tasks = [task for task in results["tasks"] if any((model, task) in chosen for model in models)]
    if not tasks:
        return
    names = [shortened(model, _NAME_CHARACTERS) for model in models]
    size = (0.6 + 0.09 * max(map(len, names)) + 2.6 * len(tasks), 1.3 + 0.3 * len(models))
    figure, grid = new_figure(size, 1, len(tasks), squeeze=False, sharey=True)
    panels = dict(zip(tasks, grid[0], strict=True))
    for task, axes in panels.items():
        _draw_task(axes, task, {model: chosen[model, task] for model in models if (model, task) in chosen}, models)
    _scale_alike(list(panels.values()))
    first = panels[tasks[0]]
    first.set_yticks(range(len(models)), names, parse_math=False)  # else "$" would start a formula
    first.set_ylim(len(models) - 0.5, -0.5)  # the first model at the top
    lines = {line.get_label(): line for axes in panels.values() for line in axes.lines}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(lines), fontsize="small")
    save_figure(figure, folder / "accuracy.png", vector=True)


def _draw_task(axes: Axes, task: str, cells: dict[str, dict[str, Any]], models: list[str]) -> None:
    """A row for each model: the accuracy with each seed and the mean; a vertical line at the mean of the first."""
    for model, cell in cells.items():
        row = models.index(model)
        values = [100 * run["metrics"]["accuracy"] for run in cell["runs"]]
        mean = statistics.fmean(values)
        axes.plot(mean, row, "o", color="lightskyblue", markersize=6, label="mean")
        axes.plot(values, [row] * len(values), "|", color="tab:blue", markersize=10, label="each seed")
        if row == 0:
            axes.axvline(mean, color="tab:gray", linestyle="--", linewidth=1, zorder=0, label="mean of the first")
    axes.set_title(f"{TASKS[task].title} ({next(iter(cells.values()))['texts']['validation']:,} texts)", fontsize=10)
    axes.set_xlabel("accuracy, %")
    show_grid(axes)


def _scale_alike(panels: list[Axes]) -> None:
    """Let a point of accuracy be as wide in all panels, each of them at least `_POINTS` wide."""
    limits = [axes.get_xlim() for axes in panels]
    width = max(_POINTS, *(high - low for low, high in limits))
    for axes, (low, high) in zip(panels, limits, strict=True):
        axes.set_xlim((low + high - width) / 2, (low + high + width) / 2)
