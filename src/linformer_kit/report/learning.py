"""Report of a learning study: learning rates tried, losses by cell, differences from the baseline, curves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from linformer_kit.report.base import environment_line, file_name, table, write_report
from linformer_kit.report.learning_figures import draw_curves, draw_panels
from linformer_kit.report.learning_gaps import gap_table
from linformer_kit.report.numbers import listed, mean_and_deviation
from linformer_kit.settings.study import rates_of, seeds_of, where_tuned

Entry = dict[str, Any]  # one training, as in `learning.json`


class _Column(NamedTuple):
    """A further measurement: a function that reads it from an entry, and the digits after the decimal point."""

    value: partial
    decimals: int = 3


def write_learning_report(results: dict[str, Any], folder: Path) -> str:
    """Write `learning.json`, `learning.md` and, for a complete study, the curves of each cell, `curves-<cell>.png`,
    and its panels, `panels.png`, each as SVG too.

    Args:
        results: Results of `learning.learn.learn` so far.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "learning", learning_markdown, _draw)


def _draw(results: dict[str, Any], folder: Path) -> None:
    if results["complete"]:
        for cell in results["settings"]["cells"]:
            curves = {variant: at_chosen_rate(results, cell, variant) for variant in results["settings"]["variants"]}
            if sum(map(bool, curves.values())) < 2:
                continue  # nothing to compare
            title = f"{results['settings']['title']}: {cell}"
            path = folder / f"curves-{file_name(cell)}.png"
            draw_curves(curves, path, baseline=results["settings"]["baseline"], title=title)
        if panels := results["settings"].get("panels"):
            draw_panels({title: _lines(results, panel) for title, panel in panels.items()}, folder / "panels.png")


def _lines(results: dict[str, Any], panel: dict[str, list[str]]) -> dict[str, list[Entry]]:
    """The trainings of each line of a panel, by its label: the variant, and the cell if there are several."""
    several = len(panel["cells"]) > 1
    return {
        (f"{variant}, {cell}" if len(panel["variants"]) > 1 else cell) if several else variant: entries
        for cell in panel["cells"]
        for variant in panel["variants"]
        if (entries := at_chosen_rate(results, cell, variant))
    }


def learning_markdown(results: dict[str, Any]) -> str:
    """All tables of a study."""
    lines = [f"# {results['settings']['title']}", "", environment_line(results["environment"]), ""]
    if not results["complete"]:
        lines += [f"Not complete: {len(results['trials'])} trainings so far.", ""]
    return "\n".join(lines) + "\n" + study_tables(results, heading="##")


def study_tables(results: dict[str, Any], *, heading: str) -> str:
    """The tables of a study, each below a heading of the given depth; docs/learning-tables.md contains them."""
    settings = results["settings"]
    lines = [f"{heading} Learning rates", "", *rates_table(results), ""]
    for cell in settings["cells"]:
        lines += [f"{heading} {cell}", "", *cell_table(results, cell), ""]
    if left := [f"{each['variant']}, {each['cell']}, seed {each['seed']}" for each in results.get("not_trained", [])]:
        lines += [f"Not trained, since what they continue diverged: {'; '.join(left)}.", ""]
    for title, panel in (settings.get("panels") or {}).items():
        gaps = gap_table(_lines(results, panel), settings["baseline"], _slots(settings, panel))
        if gaps:
            lines += [f"{heading} {title}: behind {settings['baseline']}, nats", "", *gaps, ""]
    return "\n".join(lines)


def _slots(settings: dict[str, Any], panel: dict[str, list[str]]) -> dict[str, int]:
    """k of the variants of a panel that set nothing else but where and how often they are trained, and from what."""
    only, free = "model.projected_dim", {"after", "cells", "seeds"}
    variants = {name: settings["variants"][name] for name in panel["variants"]}
    return {name: own[only] for name, own in variants.items() if only in own and not own.keys() - {only, *free}}


def at_chosen_rate(results: dict[str, Any], cell: str, variant: str) -> list[Entry]:
    """The trainings of a variant in a cell at its chosen learning rate, in the order of the seeds."""
    seeds, rate = seeds_of(results["settings"], variant, cell), results["learning_rates"].get(variant)
    found = [
        entry
        for entry in results["trials"]
        if (entry["cell"], entry["variant"], entry["learning_rate"]) == (cell, variant, rate) and entry["seed"] in seeds
    ]
    return sorted(found, key=lambda entry: seeds.index(entry["seed"]))


def rates_table(results: dict[str, Any]) -> list[str]:
    """The validation loss of each variant at each learning rate that was tried; the chosen one in bold."""
    settings = results["settings"]
    cell, seed = where_tuned(settings)
    tuned = {name: rates for name in settings["variants"] if len(rates := rates_of(settings, name)) > 1}
    rates = sorted({rate for tried in tuned.values() for rate in tried})
    if not rates:
        return ["Given, not tuned here."]
    rows, at_edge = [], []
    for variant, tried in tuned.items():
        found = {
            entry["learning_rate"]: _number(entry["validation_loss"])
            for entry in results["trials"]
            if (entry["cell"], entry["variant"], entry["seed"]) == (cell, variant, seed)
        }
        chosen = results["learning_rates"].get(variant)
        rows.append([variant, *(_bold(found.get(rate, ""), rate == chosen) for rate in rates)])
        at_edge += [variant] if chosen in (min(tried), max(tried)) else []
    below = all(seed in seeds_of(settings, variant, cell) for variant in tuned)
    lines = [
        f"Validation loss in nats in cell {cell}, seed {seed}, by learning rate; the chosen one in bold."
        + (f" This training is among those below too (seed {seed})." if below else ""),
        "",
        *table(["variant", *(f"{rate:g}" for rate in rates)], rows),
    ]
    if at_edge:
        lines += ["", f"At the edge of what was tried, so perhaps not the best: {'; '.join(at_edge)}."]
    return lines


def cell_table(results: dict[str, Any], cell: str) -> list[str]:
    """Losses of all variants in one cell at their learning rates: mean, by seed, difference from the baseline, time."""
    settings = results["settings"]
    by_variant = {variant: at_chosen_rate(results, cell, variant) for variant in settings["variants"]}
    everything = [entry for entries in by_variant.values() for entry in entries]
    if not everything:
        return ["Nothing yet."]
    baseline = {entry["seed"]: entry for entry in by_variant[settings["baseline"]]}
    of_baseline = [*baseline.values()] or everything  # the baseline may not be trained yet
    corpus = of_baseline[0]["corpus"]
    extras = _extra_columns(results, everything)
    rows = []
    for variant, entries in by_variant.items():
        if not entries:
            continue
        losses = [entry["validation_loss"] for entry in entries]
        paired = [
            entry["validation_loss"] - baseline[entry["seed"]]["validation_loss"]
            for entry in entries
            if entry["seed"] in baseline and _comparable(entry, baseline[entry["seed"]])
        ]
        other = entries[0]["corpus"]["seq_len"]
        rows.append(
            [
                variant if other == corpus["seq_len"] else f"{variant} (measured at n {other})",
                f"{entries[0]['parameters']:,}",
                f"{results['learning_rates'][variant]:g}",
                listed(sorted({entry["updates"] for entry in entries})),
                _mean(losses),
                _by_seed(entries, settings["seeds"]),
                "" if variant == settings["baseline"] or not paired else _mean(paired, sign="+"),
                *(_of_column(column, entries) for column in extras.values()),
            ]
        )
    header = ["variant", "parameters", "learning rate", "updates", "loss (nats)", f"seeds {listed(settings['seeds'])}"]
    header += [f"minus {settings['baseline']}", *extras]
    return [
        f"n {corpus['seq_len']}, {_count(corpus['train_sequences'])} sequences to train, "
        f"{_count(corpus['validation_sequences'])} to validate, vocabulary {corpus['vocab_size']:,}; "
        f"unigram entropy {_mean(sorted({entry['unigram_entropy'] for entry in of_baseline}))} nats.",
        "",
        *table(header, rows),
    ]


def _comparable(entry: Entry, other: Entry) -> bool:
    """Whether both trainings have a loss, on the same text, length and vocabulary size."""
    same = all(entry["corpus"][name] == other["corpus"][name] for name in ("fingerprint", "seq_len", "vocab_size"))
    return same and None not in (entry["validation_loss"], other["validation_loss"])


def _extra_columns(results: dict[str, Any], entries: list[Entry]) -> dict[str, _Column]:
    """Columns of further measurements, by their headings."""
    columns: dict[str, _Column] = {}
    if any(entry["minutes"] for entry in entries):
        columns["minutes, with earlier trainings"] = _Column(partial(minutes_of, results["trials"]))
    kinds = {entry["kind"] for entry in entries}
    if kinds & (seconds := results["seconds_per_update"]).keys():
        columns["an update, ms"] = _Column(partial(_of_kind, seconds, 1e3))
    if kinds & (peaks := results.get("peak_bytes_of_update", {})).keys():
        columns["memory of an update, MiB"] = _Column(partial(_of_kind, peaks, 2**-20), decimals=0)
    dims = sorted({int(dim) for entry in entries for dim in entry.get("by_projected_dim", {})}, reverse=True)
    for dim in dims:
        columns[f"run with k {dim}"] = _Column(partial(_measured, "by_projected_dim", str(dim)))
    for form in dict.fromkeys(form for entry in entries for form in entry.get("sentences", {})):
        columns[f"short texts, {form}" if form else "short texts"] = _Column(partial(_measured, "sentences", form))
    return columns


def minutes_of(trials: list[Entry], entry: Entry) -> float | None:
    """Minutes of a training and of those that it continued."""
    earlier = next((minutes_of(trials, other) for other in trials if other["name"] == entry["before"]), 0.0)
    return None if entry["minutes"] is None else (earlier or 0.0) + entry["minutes"]


def _of_column(column: _Column, entries: list[Entry]) -> str:
    return _mean([column.value(entry) for entry in entries], absent="", decimals=column.decimals)


def _of_kind(known: dict[str, float], factor: float, entry: Entry) -> float | None:
    """A measurement of the kind of an entry, in another unit."""
    return known[entry["kind"]] * factor if entry["kind"] in known else None


def _measured(name: str, key: str, entry: Entry) -> float | None:
    return entry.get(name, {}).get(key)


def _mean(numbers: list[float | None], sign: str = "", absent: str = "diverged", decimals: int = 3) -> str:
    """Mean and, for numbers that differ, the sample standard deviation."""
    there = [number for number in numbers if number is not None]
    if len(there) < len(numbers):
        return absent
    return mean_and_deviation(there if len(set(there)) > 1 else there[:1], decimals, sign=sign)


def _by_seed(entries: list[Entry], seeds: list[int]) -> str:
    """The losses in the order of the seeds; each with its seed if some are missing."""
    losses = [_number(entry["validation_loss"]) for entry in entries]
    if len(entries) < len(seeds):
        losses = [f"{loss} (seed {entry['seed']})" for loss, entry in zip(losses, entries, strict=True)]
    return ", ".join(losses)


def _number(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3f}"


def _bold(text: str, chosen: bool) -> str:
    return f"**{text}**" if chosen and text else text


def _count(number: int | None) -> str:
    return "a stream of" if number is None else f"{number:,}"
