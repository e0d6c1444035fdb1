"""Tables of the machine's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.numbers import billions, mebibytes, milliseconds


def write_ceiling_report(results: dict[str, Any], folder: Path) -> str:
    """Write `ceiling.json` and `ceiling.md`.

    Args:
        results: Results of `cost.ceiling.measure_ceiling`.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "ceiling", ceiling_markdown)


def ceiling_markdown(results: dict[str, Any]) -> str:
    """Best rates, then for each n and k the rate of each product of a layer, as Markdown."""
    settings = results["settings"]
    layers = results["layers"]
    names = list(layers[0]["products"])
    header = ["n", "k", "batch", "all products, ms", "GFLOP/s", *(f"{name}, GFLOP/s" for name in names)]
    rows = []
    for layer in layers:
        products = [layer["products"][name] for name in names]
        rates = [product["flop"] / product["seconds"] for product in products]
        total = sum(product["flop"] for product in products) / layer["products_s"]
        rows.append(
            [f"{layer[name]:,}" for name in ("seq_len", "projected_dim", "batch")]
            + [milliseconds(layer["products_s"], ",.2f"), *map(billions, (total, *rates))]
        )
    lines = [
        "# Limits of the machine",
        "",
        environment_line(results["environment"]),
        "",
        *rates_lines(results, settings["dtype"]),
        "",
        f"## The matrix products of one Linformer layer alone ({settings['dtype']}, width {settings['hidden_size']:,}, "
        f"{settings['num_attention_heads']} heads, feed-forward {settings['intermediate_size']:,})",
        "",
        *table(header, rows),
        "",
        "Each product at its shapes in the layer: the fastest run of the fastest implementation. The sum of their "
        "times is a lower bound for the layer's.",
    ]
    rows = [[name, *choice.values()] for name, choices in results["choices"].items() for choice in choices]
    if rows:
        lines += [
            "",
            "## What a layer uses here",
            "",
            *table(["format", "operation", "implementation", "reason"], rows),
        ]
    return "\n".join(lines) + "\n"


def rates_lines(rates: dict[str, Any], dtype: str) -> list[str]:
    """The best product rate and the copy bandwidth, as a Markdown list."""
    gemm, copy = rates["gemm"], rates["copy"]
    each = ", ".join(f"{name} {billions(rate)}" for name, rate in gemm["each"].items())
    square = f"{gemm['square']:,} × {gemm['square']:,}"
    bandwidth = billions(copy["bytes_per_second"], ",.1f")
    return [
        f"- Best product of two {square} matrices in {dtype}: {billions(gemm['flop_per_second'])} GFLOP/s ({each}).",
        f"- Copy of {mebibytes(copy['bytes'])} MiB, read and written: {bandwidth} GB/s.",
    ]
