"""How far the lines of a panel stay behind the baseline in nats, by update and by k, with power laws fitted to both."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from linformer_kit.report.base import table

Entry = dict[str, Any]  # one training, as in `learning.json`
Gaps = dict[int, float]  # by update

_LEAST = 3  # points of a fit
_LEFT_OUT = 1 / 4  # of the updates, in fits by update: the warm-up and the way from the start


def gap_table(lines: dict[str, list[Entry]], baseline: str, slots: dict[str, int]) -> list[str]:
    """Validation loss minus that of the baseline, after each quarter of the updates: means over the seeds of both.

    Power laws by update are fitted without the first quarter of the evaluations, and by k to the last losses. Each is
    shown with the largest deviation of a gap from it, in percent of it.

    Args:
        lines: The trainings of each line by its label, those of the baseline included.
        baseline: The label of the baseline.
        slots: k of the lines that the fit by k is made from; others are left out of it.

    Returns:
        The table and the fits; nothing if no line has a seed in common with the baseline.
    """
    of_baseline = {entry["seed"]: entry for entry in lines.get(baseline, [])}
    paired = {
        label: [(entry, of_baseline[entry["seed"]]) for entry in entries if entry["seed"] in of_baseline]
        for label, entries in lines.items()
        if label != baseline
    }
    gaps = {label: _mean_gaps(pairs) for label, pairs in paired.items() if pairs}
    if not gaps:
        return []
    shown = sorted({update for each in gaps.values() for update in _quarters(each)})
    rows = [
        [label, *(f"{each[update]:+.3f}" if update in each else "" for update in shown), _fit_by_update(each)]
        for label, each in gaps.items()
    ]
    header = ["line", *(f"{update:,} updates" for update in shown), "fit without the first quarter"]
    return [*table(header, rows), *_fit_by_slots(gaps, slots)]


def _mean_gaps(pairs: list[tuple[Entry, Entry]]) -> Gaps:
    """The mean difference of the losses of pairs at each update that all have, without the start."""
    curves = [[dict(entry["curve"]) for entry in pair] for pair in pairs]
    updates = [update for update, _ in pairs[0][0]["curve"] if update]
    there = [update for update in updates if all(curve.get(update) is not None for pair in curves for curve in pair)]
    return {update: statistics.mean(ours[update] - base[update] for ours, base in curves) for update in there}


def _quarters(gaps: Gaps) -> list[int]:
    updates = sorted(gaps)
    return [updates[-(-len(updates) * quarter // 4) - 1] for quarter in (1, 2, 3, 4)] if updates else []


def _fit_by_update(gaps: Gaps) -> str:
    updates = sorted(gaps)
    return _power_law("updates", {update: gaps[update] for update in updates[math.ceil(_LEFT_OUT * len(updates)) :]})


def _fit_by_slots(gaps: dict[str, Gaps], slots: dict[str, int]) -> list[str]:
    last = {slots[label]: each[max(each)] for label, each in gaps.items() if label in slots and each}
    fit = _power_law("k", last)
    return ["", f"After all updates the gap changes as {fit}, from k {min(last)} to {max(last)}."] if fit else []


def _power_law(name: str, points: dict[int, float]) -> str:
    """The power law nearest to some points, by least squares of logarithms, with their deviation; "" without one."""
    if len(points) < _LEAST or min(points.values()) <= 0:
        return ""
    x, y = np.log(list(points)), np.log(list(points.values()))
    exponent, offset = np.polyfit(x, y, 1)
    farthest = np.abs(np.expm1(y - exponent * x - offset)).max()
    return f"{name}^{exponent:.2f} within {100 * farthest:.0f} %"
