"""Table 1 in practice: time per token of each kind of encoder layer, its exponent, ours against other Linformers."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.figures import log_ticks, new_panels, number_ticks, save_figure, show_grid
from linformer_kit.report.numbers import ABSENT, listed, mebibytes, microseconds

_OURS = "linformer"
# Panels of the figure, by title; each has ours too.
PANELS = {
    "Table 1 of the paper": ("recurrent", "transformer", "full", "sparse", "reformer"),
    "Other efficient encoders": ("blockwise", "longformer", "bigbird", "nystromformer", "fnet"),
    "With a sliding window": ("window-32", "window-64", "window-512"),
    "Other Linformers": ("plain", "lucidrains", "tatp22"),
}
_MARKERS = ("o", "s", "^", "D", "v", "P")  # the last is ours
_MODES = {"forward": "a forward pass", "train": "forward and backward"}


def write_systems_report(results: dict[str, Any], folder: Path) -> str:
    """Write `systems.json`, `systems.md` and `systems.png`, as SVG too.

    Args:
        results: Results of `cost.systems.bench_systems`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "systems", systems_markdown, draw_systems)


def systems_markdown(results: dict[str, Any]) -> str:
    """The times, a description of each system, ours against other Linformers, and what was not run."""
    settings, environment, entries = results["settings"], results["environment"], results["systems"]
    lines = [
        "# Systems",
        "",
        f"One encoder layer, feed-forward part included: width {settings['hidden_size']}, "
        f"{settings['num_attention_heads']} heads, feed-forward {settings['intermediate_size']}, {settings['dtype']}, "
        f"about {settings['tokens']:,} tokens in a batch, at least one sequence. {environment_line(environment)}",
        "" if results["complete"] else "\nNot complete: interrupted or still running.\n",
        f"Time of {_MODES[settings.get('mode', 'forward')]} per token in µs, median; p in time ∝ nᵖ for one sequence, "
        "fitted over the lengths given.",
        "",
        *_times(settings["lengths"], entries),
        *_memory(settings["lengths"], entries),
        "",
        "## Systems compared",
        "",
        *table(
            ["system", "complexity", "source", "measured"],
            [
                [entry["label"], entry["complexity"], entry["claim"], _here(entry)]
                for entry in {entry["name"]: entry for entry in entries}.values()
            ],
        ),
        *_against_peers(entries),
        *_compilation(entries),
        *_skipped(entries),
    ]
    return "\n".join(lines) + "\n"


def _label(entry: dict[str, Any]) -> str:
    return entry["label"] if entry["k"] is None else f"{entry['label']}, k {entry['k']}"


def _here(entry: dict[str, Any]) -> str:
    return f"{entry['note']} ({entry['package']})" if entry["package"] else entry["note"]


def _times(lengths: list[int], entries: list[dict[str, Any]]) -> list[str]:
    rows = []
    for entry in entries:
        times = {run["n"]: microseconds(run["per_token_s"], ".3g") for run in entry["runs"]}
        fit = entry["exponent"]
        fitted = [f"{fit['value']:.2f}", listed(fit["lengths"])] if fit else ["", ""]
        rows.append([_label(entry), entry["complexity"], *(times.get(n, ABSENT) for n in lengths), *fitted])
    return table(["system", "complexity", *(f"n {n:,}" for n in lengths), "p", "fitted over n"], rows)


def _memory(lengths: list[int], entries: list[dict[str, Any]]) -> list[str]:
    measured = [{run["n"]: run["peak_bytes"] for run in entry["runs"] if "peak_bytes" in run} for entry in entries]
    if not any(measured):
        return []
    rows = [
        [_label(entry), *(mebibytes(peaks[n]) if n in peaks else ABSENT for n in lengths)]
        for entry, peaks in zip(entries, measured, strict=True)
    ]
    return [
        "",
        "Peak memory of such a run in MiB, beside weights and input:",
        "",
        *table(["system", *(f"n {n:,}" for n in lengths)], rows),
    ]


def peer_ratios(entries: list[dict[str, Any]]) -> dict[str, dict[tuple[int, int], float]]:
    """The time of each other Linformer divided by ours, by its name and (n, k), where both were measured.

    Ours with a sliding window computes something else, so it is not among them.
    """
    times = {
        (entry["name"], run["n"], entry["k"]): run["per_token_s"]
        for entry in entries
        if entry["k"] is not None and not entry["name"].startswith("window-")
        for run in entry["runs"]
    }
    ratios: dict[str, dict[tuple[int, int], float]] = {}
    for (name, n, k), seconds in times.items():
        if name != _OURS and (_OURS, n, k) in times:
            ratios.setdefault(name, {})[n, k] = seconds / times[_OURS, n, k]
    return ratios


def _against_peers(entries: list[dict[str, Any]]) -> list[str]:
    ratios = peer_ratios(entries)
    if not ratios:
        return []
    labels = {entry["name"]: entry["label"] for entry in entries}
    cells = sorted({cell for by_cell in ratios.values() for cell in by_cell})
    rows = [
        [f"{n:,}", f"{k}", *(f"{by_cell[n, k]:.2f}" if (n, k) in by_cell else ABSENT for by_cell in ratios.values())]
        for n, k in cells
    ]
    means = [f"{statistics.geometric_mean(by_cell.values()):.2f}" for by_cell in ratios.values()]
    return [
        "",
        "## Ours against other Linformers",
        "",
        "Their time divided by ours; above 1, ours is faster.",
        "",
        *table(["n", "k", *(labels[name] for name in ratios)], [*rows, ["geometric mean", "", *means]]),
    ]


def _compilation(entries: list[dict[str, Any]]) -> list[str]:
    first_runs = [
        f"{run['first_run_s']:.1f} s at n {run['n']:,}"
        for entry in entries
        if entry["name"] == "sparse"
        for run in entry["runs"]
    ]
    if not first_runs:
        return []
    return [
        "",
        "Not included: the sparse layer's first run, which compiles it or loads the compiled code: "
        + ", ".join(first_runs)
        + ".",
    ]


def _skipped(entries: list[dict[str, Any]]) -> list[str]:
    """Table of what was not run, lengths grouped by reason."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        for skipped in entry["skipped"]:
            reasons.setdefault((_label(entry), skipped["reason"]), []).append(skipped["n"])
    if not reasons:
        return []
    rows = [[label, listed(lengths), reason.replace("|", "¦")] for (label, reason), lengths in reasons.items()]
    return ["", "## Not run", "", *table(["system", "n", "why"], rows)]


def draw_systems(results: dict[str, Any], folder: Path) -> None:
    """Plot time per token against n on logarithmic axes, a line for each system, ours black in each panel."""
    drawn = [entry for entry in results["systems"] if entry["runs"]]
    panels = _panels(drawn)
    figure, places = new_panels(len(panels), (5, 4.2), sharey=True)
    for panel, (title, entries) in zip(places, panels.items(), strict=True):
        _draw_panel(panel, entries, results["settings"]["lengths"])
        panel.set_title(title)
    save_figure(figure, folder / "systems.png", vector=True)


def _panels(entries: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The systems by title of a panel: a panel for each k of those with one, with ours of that k.

    Ours at its first k is in the panels of systems without a k, and alone if there are no others.
    """
    ours = [entry for entry in entries if entry["name"] == _OURS]
    panels = {}
    for title, names in PANELS.items():
        others = [entry for entry in entries if entry["name"] in names]
        if not others:
            continue
        if all(entry["k"] is None for entry in others):
            panels[title] = ours[:1] + others
            continue
        dims = sorted({entry["k"] for entry in [*ours, *others]})
        for k in dims:
            name = title if len(dims) == 1 else f"{title}, k {k}"
            panels[name] = [entry for entry in [*ours, *others] if entry["k"] == k]
    return panels or {"": ours}


def _draw_panel(axes: Any, entries: list[dict[str, Any]], lengths: list[int]) -> None:
    others = itertools.count()
    for entry in entries:
        ours = entry["name"] == _OURS
        index = -1 if ours else next(others)
        axes.plot(
            [run["n"] for run in entry["runs"]],
            [run["per_token_s"] * 1e6 for run in entry["runs"]],
            color="black" if ours else f"C{index}",
            marker=_MARKERS[index],
            markersize=5,
            linewidth=3 if ours else 1.5,
            label=_label(entry) + (f": p {entry['exponent']['value']:.2f}" if entry["exponent"] else ""),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths)
    number_ticks(axes.xaxis, ",.0f")
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    number_ticks(axes.yaxis, "g")
    axes.yaxis.set_tick_params(labelleft=True)
    axes.set_xlabel("n, tokens in a sequence")
    axes.set_ylabel("time per token and layer (µs)")
    show_grid(axes, "both")
    if entries:
        _legend_by_height(axes)


def _legend_by_height(axes: Any) -> None:
    """Place the legend in the order of the lines' right ends."""
    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: -pair[0].get_ydata()[-1])
    axes.legend(
        [handle for handle, _ in pairs],
        [label for _, label in pairs],
        title="p: time of a sequence ∝ nᵖ",
        fontsize=8,
        title_fontsize=8,
    )
