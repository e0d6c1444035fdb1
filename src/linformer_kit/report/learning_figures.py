"""The curves of a learning study."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from matplotlib import colormaps

from linformer_kit.report.figures import new_figure, save_figure, show_grid

_MARKERS = "osD^vP"  # one for each variant that is drawn


def draw_curves(curves: dict[str, list[dict[str, Any]]], path: Path, *, baseline: str, title: str) -> None:
    """Plot the validation loss of at most six variants during training: mean and range over the seeds.

    They are the baseline and, of the others, those with the most seeds, then those with the lowest last loss.
    The x axis is minutes since the start of each training if the trainings had equal time, else updates.

    Args:
        curves: The trainings of each variant, as in `learning.json`.
        path: Output file.
        baseline: Name of the variant that is always drawn.
        title: Title of the figure.
    """
    figure, axes = new_figure((10, 5))
    colors = colormaps["tab10"]
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
        losses = [dict(map(tuple, entry["curve"])) for entry in entries]
        updates = [update for update in losses[0] if all(curve.get(update) is not None for curve in losses) and update]
        per_update = (entries[0]["minutes"] or 0) / entries[0]["updates"] if in_time else 1
        places = [update * per_update for update in updates]
        by_update = [[curve[update] for curve in losses] for update in updates]
        means = [statistics.mean(each) for each in by_update]
        label = f"{variant} ({means[-1]:.3f})"
        marker, color = _MARKERS[number], colors(number)
        (line,) = axes.plot(places, means, marker=marker, color=color, markersize=4, label=label)
        axes.fill_between(places, list(map(min, by_update)), list(map(max, by_update)), color=color, alpha=0.15)
        drawn.append((means[-1], number, line))
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
    save_figure(figure, path)


def _rank(entries: list[dict[str, Any]], is_baseline: bool) -> tuple[bool, int, float]:
    """Sorts the baseline first, then by number of seeds, then by mean of the last losses."""
    return not is_baseline, -len(entries), statistics.mean(entry["validation_loss"] for entry in entries)
