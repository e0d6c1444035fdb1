"""Figures of errors against k, with the bounds of the theorems."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from linformer_kit.report.figures import new_figure, save_figure, show_grid

FIRST, SECOND = "R, as in the proof", "proof, δ = 1/2ⁿ"  # the methods of the proofs of both theorems
_CONSTANT = ("answer 0", "mean of V")  # independent of k
_STYLES = {
    FIRST: ("tab:red", "o"),
    SECOND: ("tab:red", "o"),
    "proof, δ = 1": ("tab:brown", "^"),
    "pooling": ("tab:blue", "s"),
    "fitted E, F": ("tab:green", "D"),
    "SVD": ("black", "x"),
    "answer 0": ("grey", ""),
    "mean of V": ("grey", ""),
}
_NOT_DRAWN = "proof, δ = 1/n"  # lies under δ = 1/2ⁿ
_PANELS_ABREAST = 2  # legible at the width of a page
_LEAST_ERRORS = {"vector": 3e-3, "stated": 3e-4, "relative": 3e-3}  # smaller errors, as at k = n, are drawn here
_LARGEST_ERROR = 30.0


def draw_errors(results: dict[str, Any], theorem: str, measure: str, path: Path, *, title: str, bounded: bool) -> None:
    """Plot the error against k, a panel for each kind of attention; bands are a factor of one standard deviation.

    Args:
        results: As for `write_theorems_report`.
        theorem: `theorem1` or `theorem2`.
        measure: Name of the error measure.
        path: Output file.
        title: Title of the figure.
        bounded: Whether the theorem bounds this measure.
    """
    cases = results["cases"]
    rows = math.ceil(len(cases) / _PANELS_ABREAST)
    columns = min(_PANELS_ABREAST, len(cases))
    figure, axes = new_figure((1 + 4 * columns, 1.4 + 3 * rows), rows, columns, squeeze=False, sharey=True)
    for axis in axes.flat[len(cases) :]:
        axis.axis("off")
    handles: dict[str, Any] = {}
    least = _LEAST_ERRORS[measure]
    for axis, case in zip(axes.flat, cases, strict=False):
        for method, entries in case[theorem].items():
            if method == _NOT_DRAWN:
                continue
            color, marker = _STYLES[method]
            errors = [entry[measure] for entry in entries]
            if method in _CONSTANT:
                style = ":" if method == "answer 0" else "-."
                handles[method] = axis.axhline(errors[0]["error"], color=color, linestyle=style, label=method)
                continue
            ks = [entry["k"] for entry in entries]
            means = [max(error["error"], least) for error in errors]
            (handles[method],) = axis.plot(ks, means, color=color, marker=marker, markersize=4, label=method)
            low = [max(error["error"] / error["factor"], least) for error in errors]
            high = [max(error["error"] * error["factor"], least) for error in errors]
            axis.fill_between(ks, low, high, color=color, alpha=0.12, linewidth=0)
        _draw_axes(axis, case, least)
        if bounded:
            _draw_bounds(axis, case, theorem, least)
        axis.set_title(f"{case['name']}, n {case['n']:,}, d {case['d']}", fontsize=10)
        axis.set_xlabel("k")
    for axis in axes[:, 0]:
        axis.set_ylabel("error")
    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path, vector=True)


def _draw_bounds(axis: Axes, case: dict[str, Any], theorem: str, least: float) -> None:
    """Draw the region in which the theorem bounds the error by ε: right of its k, below the line."""
    for bound in case["bounds"]:
        k, epsilon = bound[f"{theorem}_dim"], bound["epsilon"]
        axis.plot([k, k, 4 * k], [least, epsilon, epsilon], color="tab:purple", linewidth=1, linestyle="--")
        axis.annotate(
            f"ε {epsilon:g}",
            (k, epsilon),
            (3, -3),
            textcoords="offset points",
            color="tab:purple",
            fontsize=7,
            va="top",
        )


def _draw_axes(axis: Axes, case: dict[str, Any], least: float) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylim(least, _LARGEST_ERROR)
    axis.axvline(case["n"], color="grey", linewidth=0.8)
    axis.text(case["n"], 0.7 * _LARGEST_ERROR, " k = n", fontsize=7, color="grey")
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(axis="x", labelsize=8)
    show_grid(axis)
