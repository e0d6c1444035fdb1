"""Tables of time and memory saved. The figures are in `efficiency_figures`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.ceiling import rates_lines
from linformer_kit.report.efficiency_figures import draw_efficiency
from linformer_kit.report.numbers import ABSENT, billions, mebibytes, microseconds, milliseconds

BASELINES = {
    "eager": "Transformer, softmax over a stored n×n matrix (Hugging Face, eager)",
    "full": 'Transformer, scaled_dot_product_attention (ours, attention="full")',
    "roberta": "Transformer, scaled_dot_product_attention (Hugging Face RobertaModel)",
}
_EXTRAPOLATED = "~"

Cell = dict[str, Any]


def write_efficiency_report(results: dict[str, Any], folder: Path) -> str:
    """Write `efficiency.json`, `efficiency.md` and the figures.

    Args:
        results: Results of `cost.efficiency.measure_efficiency` so far.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    text = write_report(results, folder, "efficiency", efficiency_markdown)
    draw_efficiency(results, folder)
    return text


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
        "n: tokens in a sequence; k: projected dimension. `~`: extrapolated from the two longest sequences measured, "
        "as a·n + b·n². `–`: not measured.",
    ]
    for name in settings["baselines"]:
        lines += ["", f"## Time saved against {BASELINES[name]}", "", *_saved(results, "time_saved", name)]
    beside = "; in parentheses the paper's (Table 3, one V100)" if settings["mode"] == "forward" else ""
    lines += ["", f"Time of the Transformer over the Linformer's{beside}.", ""]
    lines += ["## Time", "", *_times(results), "", "## Share of the machine's limits", "", *_shares(results)]
    if settings["memory"]:
        for name in settings["baselines"]:
            lines += ["", f"## Memory saved against {BASELINES[name]}", "", *_saved(results, "memory_saved", name)]
        note = f"Largest batch of the Linformer over the Transformer's, neither rounded{beside}."
        lines += ["", note, "", "## Memory", "", *_memory(results)]
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
    def show(cell: Cell) -> str:
        saved, published = cell[field].get(name), cell[f"paper_{field}"]
        ours = ABSENT if saved is None else f"{_ratio(saved['ratio'])}{_EXTRAPOLATED if saved['extrapolated'] else ''}"
        return ours if published is None else f"{ours} ({published:g})"

    return [*_grid(results["cells"], show), *_against_paper(results, field, name)]


def _against_paper(results: dict[str, Any], field: str, name: str) -> list[str]:
    """Savings relative to the paper's, over the cells that the paper has."""
    ratios = {
        f"n {cell['seq_len']:,}, k {cell['projected_dim']:,}": cell[field][name]["ratio"] / cell[f"paper_{field}"]
        for cell in results["cells"]
        if cell[field].get(name) and cell[f"paper_{field}"]
    }
    if not ratios:
        return []
    least = min(ratios, key=lambda cell: ratios[cell])
    mean = statistics.geometric_mean(ratios.values())
    return [
        "",
        f"Ratio to the paper's figure: geometric mean of {len(ratios)} cells {mean:.2f}; lowest at {least}: "
        f"{ratios[least]:.2f}.",
    ]


def _times(results: dict[str, Any]) -> list[str]:
    """Median time of a batch, and of one layer per token, for all encoders."""
    rows = []
    for entry in _sorted(results):
        time = entry["time"]
        spread = " – ".join(milliseconds(time[name], ",.1f") for name in ("min_s", "max_s")) if time else ABSENT
        per_token = entry.get("seconds_per_token_layer")
        rows.append(
            [
                f"{entry['seq_len']:,}",
                _name(entry),
                milliseconds(time["median_s"], ",.1f") if time else ABSENT,
                spread,
                f"{time['runs']}" if time else "0",
                ABSENT if per_token is None else microseconds(per_token) + _EXTRAPOLATED * entry["extrapolated"],
            ]
        )
    return table(["n", "encoder", "batch, ms", "least – most, ms", "runs", "token and layer, µs"], rows)


def _shares(results: dict[str, Any]) -> list[str]:
    """Each encoder's share of the machine's best rates, and of the time of its own products."""
    rows = [
        [
            f"{entry['seq_len']:,}",
            _name(entry),
            billions(entry["layer_flop"], ",.3g"),
            f"{entry['layer_bytes'] / 1e6:,.3g}",
            f"{entry['share_of_machine']:.0%} ({entry['bound_by']})",
            f"{entry['share_of_products']:.0%}" if "share_of_products" in entry else "",
        ]
        for entry in _sorted(results)
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


def _memory(results: dict[str, Any]) -> list[str]:
    rows = []
    for entry in _sorted(results):
        memory = entry["memory"] or {}
        mark = _EXTRAPOLATED if memory.get("extrapolated") else ""
        per_sample, batch = memory.get("bytes_per_sample"), memory.get("largest_batch")
        row = [
            f"{entry['seq_len']:,}",
            _name(entry),
            f"{mebibytes(memory['peak_bytes'])} ({memory['batch']:,})" if "peak_bytes" in memory else ABSENT,
            ABSENT if per_sample is None else mebibytes(per_sample, ",.1f") + mark,
            ABSENT if batch is None else f"{int(batch):,}{mark}",
        ]
        rows.append([*row, f"{memory['found_batch']:,}"] if memory.get("found_batch") is not None else row)
    found = any(len(row) > 5 for row in rows)
    header = ["n", "encoder", "peak, MiB (batch)", "sample, MiB", f"largest batch in {_budget(results)}"]
    rows = [[*row, *[ABSENT] * (6 - len(row))] if found else row for row in rows]
    return [*table(header + ["largest batch found"] * found, rows), "", *_memory_note(results)]


def _memory_note(results: dict[str, Any]) -> list[str]:
    train = results["settings"]["mode"] == "train"
    needed = "the weights of 12 layers and their gradients" if train else "the weights of 12 layers"
    return [
        "Each encoder was measured in a separate process, after a short sequence: the peak memory during the run "
        "minus the memory in use before (the resident set on a CPU, allocated memory on accelerators). "
        f"The largest batch is what fits in addition to {needed}, by the memory of a sample"
        + (" in 12 layers." if train else ", which the layers use one after the other.")
        + " Memory is extrapolated where a Transformer took over 10 s for a pass, or eager attention does not fit in "
        "40 % of the free memory."
    ]


def _budget(results: dict[str, Any]) -> str:
    return f"{results['settings']['budget_gib']:g} GiB"


def _sorted(results: dict[str, Any]) -> list[Cell]:
    """All entries by length, Transformers first."""
    return sorted(results["baselines"] + results["cells"], key=lambda entry: entry["seq_len"])


def _name(entry: Cell) -> str:
    return f"Linformer, k {entry['projected_dim']:,}" if "projected_dim" in entry else f"Transformer, {entry['name']}"


def _ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.1f}"
