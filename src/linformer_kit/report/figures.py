"""Helpers of all figures: drawn without a display, with numbers written in full on logarithmic axes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from linformer_kit.errors import errors_named

_DOTS_PER_INCH = 150


def new_figure(
    figsize: tuple[float, float], rows: int = 1, columns: int = 1, *, squeeze: bool = True, sharey: bool = False
) -> tuple[Figure, Any]:
    """Make a figure without pyplot, so that the caller's backend, current figure and settings stay unchanged.

    Args:
        figsize: Width and height in inches.
        rows: Rows of axes.
        columns: Columns of axes.
        squeeze: As for `Figure.subplots`.
        sharey: As for `Figure.subplots`.

    Returns:
        The figure and its axes, a single one or an array.
    """
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=squeeze, sharey=sharey)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; needs no display."""
    with errors_named(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has all scripts
        figure.savefig(path, dpi=_DOTS_PER_INCH)


def show_grid(axes: Axes, which: Literal["major", "both"] = "major") -> None:
    """Draw grid lines at the major ticks or at all ticks."""
    axes.grid(alpha=0.3, which=which)


def number_ticks(axis: Axis, form: str, *, unit: str = "", minor: bool = False) -> None:
    """Write the numbers at the ticks of an axis in full.

    Args:
        axis: The x or y axis.
        form: Format specification, as for `format`.
        unit: Text after each number.
        minor: Whether minor ticks have numbers too.
    """
    shown = FuncFormatter(lambda value, _: f"{value:{form}}{unit}")
    axis.set_major_formatter(shown)
    axis.set_minor_formatter(shown if minor else NullFormatter())


def log_ticks(axis: Axis, steps: tuple[float, ...] = (1, 2, 5)) -> None:
    """Place the ticks of a logarithmic axis at these multiples of the powers of ten."""
    axis.set_major_locator(LogLocator(subs=steps))
