"""Encoders in the reports of `bench efficiency`: their names and their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# In the order of all reports: first the Transformers that a user would run, last the one that the paper compared with.
BASELINES = {
    "full": 'Transformer, scaled_dot_product_attention (ours, attention="full")',
    "roberta": "Transformer, scaled_dot_product_attention (Hugging Face RobertaModel)",
    "eager": "Transformer, softmax over a stored n×n matrix (Hugging Face, eager)",
}
EXTRAPOLATED = "~"

Cell = dict[str, Any]


def ordered(names: Iterable[str]) -> list[str]:
    """Names of baselines in the order of the report."""
    return sorted(set(names), key=list(BASELINES).index)


def sorted_entries(results: dict[str, Any]) -> list[Cell]:
    """All entries by length: Transformers in the order of the report, then Linformers by k."""
    order = list(BASELINES)

    def position(entry: Cell) -> tuple[int, int, int]:
        place = order.index(entry["name"]) if "name" in entry else len(order)
        return entry["seq_len"], place, entry.get("projected_dim", 0)

    return sorted(results["baselines"] + results["cells"], key=position)


def entry_name(entry: Cell) -> str:
    """The encoder's name in a table."""
    return f"Linformer, k {entry['projected_dim']:,}" if "projected_dim" in entry else f"Transformer, {entry['name']}"
