"""Tables of memory: of a sample, and the largest batch in the budget, measured or extrapolated."""

from __future__ import annotations

from typing import Any

from linformer_kit.report.base import table
from linformer_kit.report.efficiency_entries import EXTRAPOLATED, Cell, entry_name, sorted_entries
from linformer_kit.report.numbers import ABSENT, mebibytes


def memory_tables(results: dict[str, Any]) -> list[str]:
    """The table of measured memory, how it was measured, and extrapolated memory."""
    entries = [(entry, entry["memory"] or {}) for entry in sorted_entries(results)]
    found = any(memory.get("found_batch") is not None for _, memory in entries)
    header = ["n", "encoder", "peak, MiB (batch)", "sample, MiB", f"largest batch in {_budget(results)}"]
    header += ["largest batch found"] * found
    rows = [_row(entry, memory)[: len(header)] for entry, memory in entries]
    lines = [*table(header, rows), "", _note(results, found)]
    return [*lines, *_extrapolated(results, entries)]


def _row(entry: Cell, memory: dict[str, Any]) -> list[str]:
    """An entry's measured memory; what was extrapolated is not shown."""
    measured = {} if memory.get("extrapolated") else memory
    per_sample, batch, found = (measured.get(name) for name in ("bytes_per_sample", "largest_batch", "found_batch"))
    return [
        f"{entry['seq_len']:,}",
        entry_name(entry),
        f"{mebibytes(memory['peak_bytes'])} ({memory['batch']:,})" if "peak_bytes" in memory else ABSENT,
        ABSENT if per_sample is None else mebibytes(per_sample, ",.1f"),
        ABSENT if batch is None else f"{int(batch):,}",
        ABSENT if found is None else f"{found:,}",
    ]


def _extrapolated(results: dict[str, Any], entries: list[tuple[Cell, dict[str, Any]]]) -> list[str]:
    rows = [
        [
            f"{entry['seq_len']:,}",
            entry_name(entry),
            mebibytes(memory["bytes_per_sample"], ",.1f") + EXTRAPOLATED,
            f"{int(memory['largest_batch']):,}{EXTRAPOLATED}",
        ]
        for entry, memory in entries
        if memory.get("extrapolated")
    ]
    header = ["n", "encoder", "sample, MiB", f"largest batch in {_budget(results)}"]
    return ["", "### Extrapolated", "", *table(header, rows)] if rows else []


def _note(results: dict[str, Any], found: bool) -> str:
    layers = " in 12 layers" if _train(results) else ", which the layers use one after the other"
    runs = "; the largest batch found is one that ran within the budget" if found else ""
    return (
        "Each encoder was measured in a separate process, after a short sequence: the peak memory during the run "
        "minus the memory in use before (the resident set on a CPU, allocated memory on accelerators). "
        f"The largest batch is what fits in addition to {_needed(results)}, by the memory of a sample{layers}. "
        f"It is computed; no run was made at that batch{runs}. "
        "Memory is extrapolated where a Transformer took over 10 s for a pass, or eager attention does not fit in "
        "40 % of the free memory."
    )


def _train(results: dict[str, Any]) -> bool:
    return results["settings"]["mode"] == "train"


def _needed(results: dict[str, Any]) -> str:
    return "the weights of 12 layers and their gradients" if _train(results) else "the weights of 12 layers"


def _budget(results: dict[str, Any]) -> str:
    return f"{results['settings']['budget_gib']:g} GiB"
