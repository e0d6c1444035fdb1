"""The curves of a study of learning."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from linformer_kit.report.base import plt

_MARKERS = "osD^vPX*<>ph"


def draw_curves(results: dict[str, Any], cell: str, path: Path) -> None:
    """Validation loss of each variant in one cell while it trains: the mean over seeds, and all seeds' range.

    Against minutes where the trainings had equal time, else against updates.
    """
    settings = results["settings"]
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    in_time = False
    for number, variant in enumerate(settings["variants"]):
        entries = [
            entry
            for entry in results["trials"]
            if (entry["cell"], entry["variant"], entry["learning_rate"])
            == (cell, variant, results["learning_rates"].get(variant))
            and entry["seed"] in settings["seeds"]
            and entry["validation_loss"] is not None
        ]
        if not entries:
            continue
        curves = [dict(map(tuple, entry["curve"])) for entry in entries]
        updates = [update for update in curves[0] if all(update in curve for curve in curves) and update]
        minutes = entries[0]["minutes"]
        in_time |= minutes is not None
        places = [update if minutes is None else minutes * update / entries[0]["updates"] for update in updates]
        losses = [[curve[update] for curve in curves] for update in updates]
        means = [statistics.mean(each) for each in losses]
        (line,) = axes.plot(
            places, means, marker=_MARKERS[number % len(_MARKERS)], markersize=4, label=f"{variant} ({means[-1]:.3f})"
        )
        axes.fill_between(places, list(map(min, losses)), list(map(max, losses)), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("minutes of training" if in_time else "updates")
    axes.set_ylabel("validation loss (nats)")
    axes.set_title(f"{settings['title']}: {cell}", fontsize=11)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
