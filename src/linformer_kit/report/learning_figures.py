"""The curves of a learning study."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from linformer_kit.report.figures import log_ticks, new_figure, new_panels, number_ticks, save_figure, show_grid

_MARKERS = "osD^vP"  # one for each variant that is drawn
MOST_LINES = len(_MARKERS)
# Of the lines of a panel by number, so that equal ones can be told apart.
_DASHES: tuple[Any, ...] = ("-", "-", "-", (0, (6, 3)), (0, (3, 3)), (0, (1, 3)))
_TICKS = (1, 1.5, 2, 3, 5, 7)


def draw_curves(curves: dict[str, list[dict[str, Any]]], path: Path, *, baseline: str, title: str) -> None:
    """Plot the validation loss of at most six variants during training: mean and range over the seeds.

    They are the baseline and, of the others, those with the most seeds, then those with the lowest last loss.
    The x axis is minutes since the start of each training if the trainings had equal time, else updates.

    Args:
        curves: The trainings of each variant, as in `learning.json`.
        path: Output file `.png`; the same figure is written as `.svg`.
        baseline: Name of the variant that is always drawn.
        title: Title of the figure.
    """
    figure, axes = new_figure((10, 5))
    drawn = []
    in_time = any(entry["minutes"] for entries in curves.values() for entry in entries)
    finished = {
        variant: [entry for entry in entries if entry["validation_loss"] is not None]
        for variant, entries in curves.items()
    }
    finished = {variant: entries for variant, entries in finished.items() if entries}
    chosen = sorted(finished, key=lambda variant: _rank(finished[variant], variant == baseline))[: len(_MARKERS)]
    for number, variant in enumerate(each for each in finished if each in chosen):
        entries = finished[variant]
        losses = _losses(entries)
        per_update = (entries[0]["minutes"] or 0) / entries[0]["updates"] if in_time else 1
        x = [update * per_update for update in losses]
        line = _draw_line(axes, number, x, [*losses.values()], variant, decimals=3)
        drawn.append((statistics.mean([*losses.values()][-1]), number, line))
    axes.set_xlabel("minutes of this training" if in_time else "updates")
    axes.set_ylabel("validation loss (nats)")
    axes.set_title(title, fontsize=11)
    show_grid(axes)
    if drawn:  # legend in the order of the last losses
        lines = [line for *_, line in sorted(drawn, reverse=True)]
        heading = "last loss of the mean"
        if len(drawn) < len(finished):
            heading += f"\n({len(drawn)} of {len(finished)} variants)"
        figure.legend(handles=lines, loc="outside right center", fontsize=8, title=heading, frameon=False)
    save_figure(figure, path, vector=True)


def draw_panels(panels: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Plot validation perplexity against updates on a logarithmic axis, as in Figure 3: mean and range over the seeds.

    Two panels are as wide as the text of a paper, in its size. A label has the same colour in all panels where it is
    free.

    Args:
        panels: For each title, the trainings of each line by its label.
        path: Output file `.png`; the same figure is written as `.svg`.
    """
    figure, grid = new_panels(len(panels), (3.4, 3.2))
    numbers = _numbers(panels)
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for label, entries in lines.items():
            number = numbers[title, label]
            losses = _losses([entry for entry in entries if entry["validation_loss"] is not None])
            if not losses:
                continue
            by_update = [[math.exp(loss) for loss in each] for each in losses.values()]
            _draw_line(axes, number, [*losses], by_update, label, decimals=0).set_linestyle(_DASHES[number])
        axes.set_yscale("log")
        log_ticks(axes.yaxis, _TICKS)
        number_ticks(axes.yaxis, ",.0f")
        number_ticks(axes.xaxis, ",.0f")
        axes.set_xlabel("updates", fontsize=8)
        axes.set_ylabel("validation perplexity", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.set_title(title, fontsize=9)
        show_grid(axes)
        axes.legend(
            **{
                "fontsize": 7,
                "title": "last perplexity in brackets",
                "title_fontsize": 7,
                "frameon": False,
                "handlelength": 3.5,
            },
            **{"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 2, "columnspacing": 1, "borderpad": 0},
        )
    save_figure(figure, path, vector=True)


def _numbers(panels: dict[str, dict[str, Any]]) -> dict[tuple[str, str], int]:
    """The number of colour, marker and dashes of each line, by panel and label.

    A label keeps its first number in all panels where no other label took it; others have the lowest that is free.
    """
    numbers: dict[tuple[str, str], int] = {}
    first: dict[str, int] = {}
    for title, lines in panels.items():
        free = [*range(MOST_LINES)]
        for label in sorted(lines, key=lambda label: label not in first):
            number = first[label] if first.get(label) in free else free[0]
            free.remove(number)
            first.setdefault(label, number)
            numbers[title, label] = number
    return numbers


def _draw_line(
    axes: Axes, number: int, x: Sequence[float], values: list[list[float]], label: str, *, decimals: int
) -> Line2D:
    """Plot the mean of the values at each x, and their range; the last mean stands beside the label."""
    means, color = [statistics.mean(each) for each in values], colormaps["tab10"](number)
    style: dict[str, Any] = {"marker": _MARKERS[number], "color": color, "markersize": 4}
    (line,) = axes.plot(x, means, label=f"{label} ({means[-1]:.{decimals}f})", **style)
    axes.fill_between(x, list(map(min, values)), list(map(max, values)), color=color, alpha=0.15)
    return line


def _losses(entries: list[dict[str, Any]]) -> dict[int, list[float]]:
    """Validation losses of some trainings by update, without the start and updates that one of them lacks."""
    curves = [dict(map(tuple, entry["curve"])) for entry in entries]
    updates = [update for update in curves[0] if update] if curves else []
    return {
        update: [curve[update] for curve in curves]
        for update in updates
        if all(curve.get(update) is not None for curve in curves)
    }


def _rank(entries: list[dict[str, Any]], is_baseline: bool) -> tuple[bool, int, float]:
    """Sorts the baseline first, then by number of seeds, then by mean of the last losses."""
    return not is_baseline, -len(entries), statistics.mean(entry["validation_loss"] for entry in entries)
