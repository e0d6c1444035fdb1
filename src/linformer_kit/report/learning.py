"""A study of learning as tables and curves: learning rates tried, losses by cell, differences from the baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from linformer_kit.report.base import listed, table, write_report
from linformer_kit.report.ceiling import environment_line
from linformer_kit.report.learning_figures import draw_curves

Entry = dict[str, Any]  # one training, as in `learning.json`


def write_learning_report(results: dict[str, Any], folder: Path) -> str:
    """Write `learning.json`, `learning.md` and the curves of each cell, `curves-<cell>.png`.

    Args:
        results: What `bench.learning.learn` has found so far.
        folder: Where to write.

    Returns:
        The Markdown text.
    """
    text = write_report(results, folder, "learning", learning_markdown)
    if results["complete"]:
        for cell in results["settings"]["cells"]:
            draw_curves(results, cell, folder / f"curves-{cell}.png")
    return text


def learning_markdown(results: dict[str, Any]) -> str:
    """All tables of a study."""
    settings = results["settings"]
    lines = [f"# {settings['title']}", "", environment_line(results["environment"]), ""]
    if not results["complete"]:
        lines += [f"Not complete: {len(results['trials'])} trainings so far.", ""]
    if any(_rates(settings, variant)[1:] for variant in settings["variants"]):
        lines += ["## Learning rates", "", *rates_table(results), ""]
    for cell in settings["cells"]:
        lines += [f"## {cell}", "", *cell_table(results, cell), ""]
    return "\n".join(lines)


def rates_table(results: dict[str, Any]) -> list[str]:
    """The validation loss of each variant at each learning rate that was tried; the chosen one in bold."""
    settings = results["settings"]
    cell = settings["tune"].get("cell", next(iter(settings["cells"])))
    seed = settings["tune"].get("seed", settings["seeds"][0])
    tuned = {variant: _rates(settings, variant) for variant in settings["variants"]}
    rates = sorted({rate for tried in tuned.values() if len(tried) > 1 for rate in tried})
    rows = []
    for variant, tried in tuned.items():
        if len(tried) < 2:
            continue
        found = {
            entry["learning_rate"]: _number(entry["validation_loss"])
            for entry in results["trials"]
            if (entry["cell"], entry["variant"], entry["seed"]) == (cell, variant, seed)
        }
        chosen = results["learning_rates"].get(variant)
        rows.append([variant, *(_bold(found.get(rate, ""), rate == chosen) for rate in rates)])
    return [
        f"Validation loss in nats in cell {cell}, seed {seed}, by learning rate; the chosen one in bold.",
        "",
        *table(["variant", *(f"{rate:g}" for rate in rates)], rows),
    ]


def cell_table(results: dict[str, Any], cell: str) -> list[str]:
    """Losses of all variants in one cell at their learning rates: mean, seeds, difference from the baseline, time."""
    settings = results["settings"]
    by_variant = {variant: _at_its_rate(results, cell, variant) for variant in settings["variants"]}
    everything = [entry for entries in by_variant.values() for entry in entries]
    if not everything:
        return ["Nothing yet."]
    baseline = {entry["seed"]: entry["validation_loss"] for entry in by_variant[settings["baseline"]]}
    extras = _extra_columns(everything)
    rows = []
    for variant, entries in by_variant.items():
        losses = [entry["validation_loss"] for entry in entries]
        paired = [
            entry["validation_loss"] - baseline[entry["seed"]]
            for entry in entries
            if None not in (entry["validation_loss"], baseline.get(entry["seed"]))
        ]
        rows.append(
            [
                variant,
                f"{results['learning_rates'].get(variant, math.nan):g}",
                listed(sorted({entry["updates"] for entry in entries})),
                _mean(losses),
                ", ".join(map(_number, losses)),
                "" if variant == settings["baseline"] else _difference(paired),
                *(_mean([value(entry) for entry in entries]) for value in extras.values()),
            ]
        )
    first = everything[0]
    corpus = first["corpus"]
    header = ["variant", "learning rate", "updates", "loss (nats)", f"seeds {listed(settings['seeds'])}"]
    header += [f"less {settings['baseline']}", *extras]
    return [
        f"n {corpus['seq_len']}, {_count(corpus['train_sequences'])} sequences to train, "
        f"{_count(corpus['validation_sequences'])} to validate, vocabulary {corpus['vocab_size']:,}; "
        f"unigram entropy {first['unigram_entropy']:.3f} nats.",
        "",
        *table(header, rows),
    ]


def _at_its_rate(results: dict[str, Any], cell: str, variant: str) -> list[Entry]:
    """The trainings of a variant in a cell at the learning rate that it was given, by seed."""
    seeds, rate = results["settings"]["seeds"], results["learning_rates"].get(variant)
    found = [
        entry
        for entry in results["trials"]
        if (entry["cell"], entry["variant"], entry["learning_rate"]) == (cell, variant, rate) and entry["seed"] in seeds
    ]
    return sorted(found, key=lambda entry: seeds.index(entry["seed"]))


def _extra_columns(entries: list[Entry]) -> dict[str, Callable[[Entry], float | None]]:
    """What was measured beside the loss: a heading and how to find it in an entry."""
    dims = sorted({int(dim) for entry in entries for dim in entry.get("by_projected_dim", {})}, reverse=True)
    forms = list(dict.fromkeys(form for entry in entries for form in entry.get("sentences", {})))
    columns: dict[str, Callable[[Entry], float | None]] = {}
    for dim in dims:
        columns[f"run with k {dim}"] = partial(_measured, name="by_projected_dim", key=dim)
    for form in forms:
        columns[f"short texts, {form}" if form else "short texts"] = partial(_measured, name="sentences", key=form)
    return columns


def _measured(entry: Entry, *, name: str, key: Any) -> float | None:
    """What JSON may have made text of the key of."""
    return {str(each): loss for each, loss in entry.get(name, {}).items()}.get(str(key))


def _rates(settings: dict[str, Any], variant: str) -> list[float]:
    return settings["variants"][variant].get("learning_rates", settings["learning_rates"])


def _mean(numbers: list[float | None]) -> str:
    """Mean and, of several, the sample's standard deviation."""
    there = [number for number in numbers if number is not None]
    if not there or len(there) < len(numbers):
        return "diverged" if there else ""
    spread = f" ± {statistics.stdev(there):.3f}" if len(there) > 1 else ""
    return f"{statistics.mean(there):.3f}{spread}"


def _difference(numbers: list[float]) -> str:
    if not numbers:
        return ""
    spread = f" ± {statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):+.3f}{spread}"


def _number(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3f}"


def _bold(text: str, chosen: bool) -> str:
    return f"**{text}**" if chosen and text else text


def _count(number: int | None) -> str:
    return "a stream of" if number is None else f"{number:,}"
