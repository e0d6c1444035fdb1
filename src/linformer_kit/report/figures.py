"""Helpers of all figures: drawn without a display, with numbers written in full on logarithmic axes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from linformer_cli.errors import errors_named

_DOTS_PER_INCH = 150
Curves = Mapping[str, Sequence[Sequence[float]]]  # pairs of update and value by the name of the curve


def new_figure(figsize: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Make a figure of a size in inches, and its axes, a single one or an array; `options` are for `Figure.subplots`.

    Without pyplot, so that the caller's backend, current figure and settings stay unchanged.
    """
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; needs no display."""
    with errors_named(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has all scripts
        figure.savefig(path, dpi=_DOTS_PER_INCH)


def draw_curves(panels: Mapping[str, Curves], path: Path, *, logarithmic: bool = False) -> None:
    """Draw values against updates, as PNG.

    Args:
        panels: For each panel, by the name of its y axis, its curves; names of curves are shown if there are several.
        path: The file.
        logarithmic: Whether the y axis of the first panel is logarithmic.
    """
    figure, axes = new_figure((1 + 5 * len(panels), 4.5), 1, len(panels), squeeze=False)
    for panel, (name, curves) in zip(axes[0], panels.items(), strict=True):
        for label, points in curves.items():
            if points:
                marker = "o" if len(points) < 20 else None
                panel.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=3)
        panel.set(xlabel="updates", ylabel=name)
        show_grid(panel)
        if len(panel.lines) > 1:
            panel.legend(fontsize="small")
    if logarithmic:
        axes[0, 0].set_yscale("log")
        log_ticks(axes[0, 0].yaxis)
        number_ticks(axes[0, 0].yaxis, ",g")
    save_figure(figure, path)


def show_grid(axes: Axes) -> None:
    """Draw grid lines at the major ticks."""
    axes.grid(alpha=0.3)


def number_ticks(axis: Axis, form: str, *, unit: str = "") -> None:
    """Write the numbers at the major ticks of an axis in full, by a specification for `format` and with a unit."""
    axis.set_major_formatter(f"{{x:{form}}}{unit}")
    axis.set_minor_formatter(NullFormatter())


def log_ticks(axis: Axis, steps: tuple[float, ...] = (1, 2, 5)) -> None:
    """Place the ticks of a logarithmic axis at these multiples of the powers of ten."""
    axis.set_major_locator(LogLocator(subs=steps))
