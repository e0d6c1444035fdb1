"""Names of methods, positions and measures in the report and the figures of `bench documents`."""

from __future__ import annotations

from typing import Any

# Label and description of each method of the teacher.
METHODS = {
    "cut": ("cut", "the teacher, texts truncated at {limit:,} tokens"),
    "pieces": (
        "pieces",
        "the teacher on consecutive pieces of {limit:,} tokens; mean of their embeddings, weighted by tokens",
    ),
    "pieces_overlapping": ("pieces, overlapping", "the same with pieces that overlap by half"),
    "stretched": ("stretched", "the teacher with full attention, positions resized (`{mode}`)"),
    "linearised": ("linearised", "the teacher by `linearize` with its defaults, not trained"),
}


def method_label(name: str) -> str:
    """The name of a method or model for readers."""
    return METHODS[name][0] if name in METHODS else name


def position_labels(results: dict[str, Any]) -> list[str]:
    """The ranges of tokens of the sentences of late_sentence."""
    return [f"{low:,}–{high:,}" for low, high in results["positions"]]
