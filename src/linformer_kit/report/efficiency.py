"""Tables of time and memory saved. The figures are in `efficiency_figures`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.ceiling import rates_lines
from linformer_kit.report.efficiency_entries import (
    BASELINES,
    EXTRAPOLATED,
    Cell,
    entry_name,
    ordered,
    sorted_entries,
)
from linformer_kit.report.efficiency_figures import draw_efficiency
from linformer_kit.report.efficiency_memory import memory_tables
from linformer_kit.report.numbers import ABSENT, billions, microseconds, milliseconds

_EAGER = (
    "Eager attention stores the n×n scores, which current libraries no longer do by default. It is what the paper "
    "compared with: these savings are for comparison with the paper's, and are not what a user of today saves."
)


def write_efficiency_report(results: dict[str, Any], folder: Path) -> str:
    """Write `efficiency.json`, `efficiency.md` and the figures.

    Args:
        results: Results of `cost.efficiency.measure_efficiency` so far.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "efficiency", efficiency_markdown, draw_efficiency)


def efficiency_markdown(results: dict[str, Any]) -> str:
    """Time and memory saved, with the paper's figures, then times, shares of the limits, and memory."""
    settings = results["settings"]
    step = "training step" if settings["mode"] == "train" else "forward pass"
    lines = [
        f"# Efficiency: {step}, {settings['dtype']}",
        "",
        *([] if results["complete"] else ["**Interrupted: not all lengths were measured.**", ""]),
        environment_line(results["environment"]),
        "",
        *_how(results),
        *rates_lines(results, settings["dtype"]),
        "",
        "n: tokens in a sequence; k: projected dimension. `–`: not measured. `~`: extrapolated from the two longest "
        "sequences measured, as a·n + b·n²; these values have tables of their own and are in no mean.",
    ]
    for name in ordered(settings["baselines"]):
        lines += ["", f"## Time saved against {BASELINES[name]}", "", *_saved(results, "time_saved", name)]
    beside = "; in parentheses the paper's (Table 3, one V100)" if settings["mode"] == "forward" else ""
    lines += ["", f"Time of the Transformer over the Linformer's{beside}.", ""]
    lines += ["## Time", "", *_times(results), "", "## Share of the machine's limits", "", *_shares(results)]
    if settings["memory"]:
        for name in ordered(settings["baselines"]):
            lines += ["", f"## Memory saved against {BASELINES[name]}", "", *_saved(results, "memory_saved", name)]
        note = f"Computed largest batch of the Linformer over the Transformer's, neither rounded{beside}."
        lines += ["", note, "", "## Memory", "", *memory_tables(results)]
    return "\n".join(lines) + "\n"


def _how(results: dict[str, Any]) -> list[str]:
    """Description of the measurement, as a Markdown list."""
    settings, entries = results["settings"], results["cells"] + results["baselines"]
    train = settings["mode"] == "train"
    layers = _by_length(entries, "layers")
    batches = _by_length(entries, "batch")
    lines = [
        f"- Encoders of width {settings['hidden_size']:,}, {settings['num_attention_heads']} heads, feed-forward "
        f"{settings['intermediate_size']:,}, random weights and tokens, vocabulary 1,000; Linformers share one E = F "
        "in all layers.",
        f"- Layers: {layers}. Sequences in a batch: {batches}. Times include word and position embeddings.",
        f"- Medians of up to {settings['repetitions']} runs; the encoders of a length alternate. Each has "
        f"{settings['seconds']:g} s in all; its first run is a warm-up unless it takes over a third of them.",
    ]
    if busy := settings.get("busy_cores"):
        lines.append(f"- Other processes kept {busy} {'core' if busy == 1 else 'cores'} busy during all runs.")
    if train:
        lines.append(
            "- A training step is forward and backward, without optimiser and dropout, in which libraries differ; "
            "the loss is the mean square of the output. The backward pass counts as twice the operations of the "
            "forward pass, and as twice the time of its products."
        )
    return lines


def _by_length(entries: Iterable[Cell], field: str) -> str:
    """A field that depends on n only: each value with its lengths."""
    lengths: dict[int, set[int]] = {}
    for entry in entries:
        lengths.setdefault(entry[field], set()).add(entry["seq_len"])
    return "; ".join(f"{value:,} at n {', '.join(f'{n:,}' for n in sorted(of))}" for value, of in lengths.items())


def _grid(cells: list[Cell], show: Callable[[Cell], str]) -> list[str]:
    """A table with a row for each n and a column for each k."""
    dims = sorted({cell["projected_dim"] for cell in cells})
    rows: dict[int, dict[int, str]] = {}
    for cell in cells:
        rows.setdefault(cell["seq_len"], {})[cell["projected_dim"]] = show(cell)
    header = ["n", *(f"k {k:,}" for k in dims)]
    return table(header, [[f"{n:,}", *(shown.get(k, "") for k in dims)] for n, shown in rows.items()])


def _saved(results: dict[str, Any], field: str, name: str) -> list[str]:
    """The measured savings against one Transformer, their mean, and the extrapolated ones in a table below."""
    beyond = [cell for cell in results["cells"] if cell[field].get(name) and cell[field][name]["extrapolated"]]
    lines = [_EAGER, ""] if name == "eager" else []
    lines += _grid(results["cells"], lambda cell: _beside_paper(cell, field, name, extrapolated=False))
    lines += _against_paper(results, field, name)
    if beyond:
        lines += ["", "### Extrapolated", ""]
        lines += _grid(beyond, lambda cell: _beside_paper(cell, field, name, extrapolated=True))
    return lines


def _beside_paper(cell: Cell, field: str, name: str, *, extrapolated: bool) -> str:
    """The saving if it was measured or, as asked, extrapolated; in parentheses the paper's, if there is one."""
    saved, published = cell[field].get(name), cell[f"paper_{field}"]
    shown = saved is not None and saved["extrapolated"] is extrapolated
    ours = f"{_ratio(saved['ratio'])}{EXTRAPOLATED * extrapolated}" if shown else ABSENT
    return ours if published is None else f"{ours} ({published:g})"


def _against_paper(results: dict[str, Any], field: str, name: str) -> list[str]:
    """Savings relative to the paper's, over the measured cells that the paper has."""
    both = [cell for cell in results["cells"] if cell[field].get(name) and cell[f"paper_{field}"]]
    ratios = {
        f"n {cell['seq_len']:,}, k {cell['projected_dim']:,}": cell[field][name]["ratio"] / cell[f"paper_{field}"]
        for cell in both
        if not cell[field][name]["extrapolated"]
    }
    if not ratios:
        return []
    least = min(ratios, key=lambda cell: ratios[cell])
    mean = statistics.geometric_mean(ratios.values())
    left = len(both) - len(ratios)
    return [
        "",
        f"Ratio to the paper's figure: geometric mean of {len(ratios)} measured cells {mean:.2f}"
        + (f", without {left} extrapolated" if left else "")
        + f"; lowest at {least}: {ratios[least]:.2f}.",
    ]


def _times(results: dict[str, Any]) -> list[str]:
    """Median time of a batch, and of one layer per token, for all encoders."""
    entries = sorted_entries(results)
    header = ["n", "encoder", "batch, ms", "least – most, ms", "runs", "token and layer, µs"]
    beyond = [
        [f"{entry['seq_len']:,}", entry_name(entry), microseconds(entry["seconds_per_token_layer"]) + EXTRAPOLATED]
        for entry in entries
        if entry["extrapolated"]
    ]
    lines = table(header, [_time_row(entry) for entry in entries])
    return lines + (["", "### Extrapolated", "", *table(["n", "encoder", header[-1]], beyond)] if beyond else [])


def _time_row(entry: Cell) -> list[str]:
    """An entry's measured times; what was extrapolated is not shown."""
    shown = [f"{entry['seq_len']:,}", entry_name(entry)]
    time = entry["time"]
    if time is None:
        return [*shown, ABSENT, ABSENT, "0", ABSENT]
    spread = " – ".join(milliseconds(time[name], ",.1f") for name in ("min_s", "max_s"))
    per_token = microseconds(entry["seconds_per_token_layer"])
    return [*shown, milliseconds(time["median_s"], ",.1f"), spread, f"{time['runs']}", per_token]


def _shares(results: dict[str, Any]) -> list[str]:
    """Each encoder's share of the machine's best rates, and of the time of its own products."""
    rows = [
        [
            f"{entry['seq_len']:,}",
            entry_name(entry),
            billions(entry["layer_flop"], ",.3g"),
            f"{entry['layer_bytes'] / 1e6:,.3g}",
            f"{entry['share_of_machine']:.0%} ({entry['bound_by']})",
            f"{entry['share_of_products']:.0%}" if "share_of_products" in entry else "",
        ]
        for entry in sorted_entries(results)
        if entry["time"]
    ]
    header = ["n", "encoder", "layer, GFLOP", "layer, MB", "share of the machine's limit", "share of its own products"]
    return [
        *table(header, rows),
        "",
        "The machine's limit: operations over the best product rate or bytes over the copy bandwidth, whichever is "
        "longer (in parentheses which). Own products: the fastest times of the layer's matrix products alone, at the "
        "same shapes in the same run, over the fastest time of the encoder by layer, embeddings included.",
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.1f}"
