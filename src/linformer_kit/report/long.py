"""Table of one pass over a very long sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.numbers import gibibytes, microseconds, milliseconds


def write_long_report(results: dict[str, Any], folder: Path) -> str:
    """Write `long.json` and `long.md`.

    Args:
        results: Results of `cost.long.measure_long`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "long", long_markdown)


def long_markdown(results: dict[str, Any]) -> str:
    """Time per token at both lengths, their ratio, and memory."""
    settings, short, long = results["settings"], results["reference"], results["long"]
    runs = f"median of {short['runs']}, {milliseconds(short['min_s'])} – {milliseconds(short['max_s'])} ms"
    rows = [
        [
            f"{settings['reference_length']:,}",
            f"{short['median_s']:,.3f}",
            microseconds(short["seconds_per_token"], ",.2f"),
        ],
        [f"{settings['n']:,}", f"{long['seconds']:,.3f}", microseconds(long["seconds_per_token"], ",.2f")],
    ]
    rows = [[*row, how] for row, how in zip(rows, (runs, "one, without a warm-up"), strict=True)]
    peak, hidden = results["peak_bytes"], results["hidden_bytes"]
    lines = [
        f"# One pass over {settings['n']:,} tokens",
        "",
        environment_line(results["environment"]),
        "",
        f"Linformer encoder, {settings['dtype']}: {settings['layers']} layers, width {settings['hidden_size']:,}, "
        f"{settings['num_attention_heads']} heads, feed-forward {settings['intermediate_size']:,}, "
        f"k {settings['projected_dim']:,}, one E = F in all layers, vocabulary {settings['vocab_size']:,}; random "
        "weights and tokens; a separate model for each length.",
        "",
        *table(["n", "seconds", "token, µs", "runs"], rows),
        "",
        f"- Time per token against that at {settings['reference_length']:,}: {results['ratio']:.3f} ×.",
        f"- Weights: {gibibytes(results['weight_bytes'])}. Hidden states of one layer: {gibibytes(hidden)}.",
        f"- Peak memory during the pass minus the memory in use before it, which includes the weights: "
        f"{gibibytes(peak)}, {results['peak_in_hidden_states']:.2f} × the hidden states of one layer.",
    ]
    return "\n".join(lines) + "\n"
