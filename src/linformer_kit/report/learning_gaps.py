"""How far the lines of a panel stay behind the baseline in nats, by update and by k, with power laws fitted to both."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from linformer_kit.report.base import table

Entry = dict[str, Any]  # one training, as in `learning.json`
Gaps = dict[int, float]  # by update

_LEAST = 3  # points of a fit


def gap_table(lines: dict[str, list[Entry]], baseline: str, slots: dict[str, int]) -> list[str]:
    """Validation loss minus that of the baseline, after each quarter of the updates.

    Args:
        lines: The trainings of each line by its label, those of the baseline included.
        baseline: The label of the baseline.
        slots: k of the lines that the fit by k is made from; others are left out of it.

    Returns:
        The table and the fits; nothing if a line has not been trained.
    """
    curves = {label: _mean_curve(entries) for label, entries in lines.items()}
    if baseline not in curves or len(curves) < 2:
        return []
    gaps = {
        label: {update: loss - curves[baseline][update] for update, loss in curve.items() if update in curves[baseline]}
        for label, curve in curves.items()
        if label != baseline
    }
    shown = sorted({update for each in gaps.values() for update in _quarters(each)})
    rows = [
        [label, *(f"{each[update]:+.3f}" if update in each else "" for update in shown), _fit_by_update(each)]
        for label, each in gaps.items()
    ]
    header = ["line", *(f"{update:,} updates" for update in shown), "fit of the second half"]
    return [*table(header, rows), *_fit_by_slots(gaps, slots)]


def _mean_curve(entries: list[Entry]) -> Gaps:
    """The mean loss over the seeds at each update that all have, without the start."""
    curves = [{update: loss for update, loss in entry["curve"] if update and loss is not None} for entry in entries]
    common = set.intersection(*map(set, curves)) if curves else set()
    return {update: statistics.mean(curve[update] for curve in curves) for update in sorted(common)}


def _quarters(gaps: Gaps) -> list[int]:
    updates = sorted(gaps)
    return [updates[-(-len(updates) * quarter // 4) - 1] for quarter in (1, 2, 3, 4)] if updates else []


def _fit_by_update(gaps: Gaps) -> str:
    updates = sorted(gaps)
    exponent = _exponent({update: gaps[update] for update in updates[len(updates) // 2 :]})
    return "" if exponent is None else f"updates^{exponent:.2f}"


def _fit_by_slots(gaps: dict[str, Gaps], slots: dict[str, int]) -> list[str]:
    last = {slots[label]: each[max(each)] for label, each in gaps.items() if label in slots and each}
    exponent = _exponent(last)
    if exponent is None:
        return []
    return ["", f"After all updates the gap falls as k^{exponent:.2f}, from k {min(last)} to {max(last)}."]


def _exponent(points: dict[int, float]) -> float | None:
    """The exponent of the power law through some points, by least squares of logarithms; None if there is none."""
    if len(points) < _LEAST or min(points.values()) <= 0:
        return None
    places, values = np.log(list(points)), np.log(list(points.values()))
    return float(np.polyfit(places, values, 1)[0])
