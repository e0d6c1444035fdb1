"""`linformer bench`: time and memory of Linformers on this machine, beside a Transformer of equal size."""

from __future__ import annotations

import time
from typing import Any

import torch

from linformer_cli.errors import InputError
from linformer_cli.settings import BenchSettings, without_local_paths
from linformer_kit.analysis.measure import (
    MODES,
    Mode,
    batch_of,
    can_measure_memory,
    dtype_of,
    encoder_of,
    interleaved,
    memory_of,
    prepared,
    summary,
)
from linformer_kit.files.folders import open_output_dir
from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.environment import device_of, environment

REPETITIONS = 5  # timed runs of each encoder; fewer if they exceed these seconds
SECONDS = 10.0

Record = dict[str, Any]


def main(settings: BenchSettings) -> None:
    """Measure, write `bench.json` and `bench.md` after each length, and print the table.

    Raises:
        InputError: for a length without a smaller k, heads that do not divide the width, an unavailable device, or an
            output_dir that is not empty.
    """
    if min(settings.lengths) <= min(settings.projected_dims):
        expected = f"more than the smallest of projected_dims, {min(settings.projected_dims)}"
        raise InputError(f"lengths: expected {expected}, got {min(settings.lengths)}")
    device = device_of(settings.device)
    folder = open_output_dir(settings.output_dir, command="bench")
    results: Record = {
        "command": "bench",
        "environment": environment(device),
        "settings": without_local_paths(settings) | {"dtype": dtype_of(settings.dtype, device)},
        "complete": False,
        "records": [],
    }
    lengths, start = sorted(set(settings.lengths)), time.monotonic()
    count = sum(1 + sum(k < n for k in set(settings.projected_dims)) for n in lengths) * len(MODES)
    minutes = count * SECONDS / 60
    print(
        f"{count} measurements of up to {SECONDS:g} seconds, {minutes:.0f} minutes, besides those of memory", flush=True
    )
    for n in lengths:
        for mode in MODES:
            records = measure_length(settings, n, mode, device)
            results["records"] += records
            print(f"\n{MODES[mode]}, n {n:,}:\n", *_rows(records), sep="\n", flush=True)
        results["complete"] = n == lengths[-1]
        text = write_report(results, folder, markdown(results), name="bench")
    print(text)
    print(f"Saved in {folder} after {(time.monotonic() - start) / 60:.1f} minutes")


def measure_length(settings: BenchSettings, seq_len: int, mode: Mode, device: torch.device) -> list[Record]:
    """Measure all encoders of one length; a record for each, the Transformer first."""
    dtype = getattr(torch, dtype_of(settings.dtype, device))
    batch, layers = batch_of(settings.tokens, seq_len, device), settings.num_hidden_layers
    encoders = [
        encoder_of(settings, "roberta" if k is None else "linformer", seq_len, k, num_hidden_layers=layers)
        for k in (None, *(k for k in sorted(set(settings.projected_dims)) if k < seq_len))
    ]
    runs = {encoder: prepared(encoder, batch, mode, device, dtype) for encoder in encoders}
    times = interleaved(runs, device=device, repetitions=REPETITIONS, seconds=SECONDS)
    memory = can_measure_memory(device)
    return [
        {
            "mode": mode,
            "seq_len": seq_len,
            "projected_dim": encoder.projected_dim,
            "batch": batch,
            **summary(times[encoder]),
            "peak_bytes": memory_of(encoder, batch, mode, device, dtype) if memory else None,
        }
        for encoder in encoders
    ]


def saved(record: Record, records: list[Record], field: str) -> float | None:
    """The Transformer's value of a field over this record's, at the same n; None for the Transformer or no value."""
    if record["projected_dim"] is None or not record[field]:
        return None
    (full,) = (each for each in records if each["seq_len"] == record["seq_len"] and each["projected_dim"] is None)
    return full[field] / record[field]


def markdown(results: Record) -> list[str]:
    """A table for the forward pass and one for training, as lines of Markdown."""
    settings = results["settings"]
    lines = [
        "# Time and memory on this machine",
        "",
        environment_line(results["environment"]),
        "",
        f"Encoders of {settings['num_hidden_layers']} layers, width {settings['hidden_size']:,}, "
        f"{settings['num_attention_heads']} heads, feed-forward {settings['intermediate_size']:,}, "
        f"{settings['dtype']}, random weights and tokens. The Transformer is transformers' RobertaModel with "
        "scaled_dot_product_attention; Linformers share one E = F. Median (minimum – maximum) of up to "
        f"{REPETITIONS} alternating runs. Saved: the Transformer's over the Linformer's. Memory: the peak "
        "of a run beside weights and gradients. n: tokens in a sequence; k: projected dimension.",
    ]
    for mode, title in MODES.items():
        lines += ["", f"## {title}", "", *_rows([each for each in results["records"] if each["mode"] == mode])]
    return lines


def _rows(records: list[Record]) -> list[str]:
    header = ["n", "batch", "encoder", "time, ms", "time saved", "memory, MiB", "memory saved"]
    return table(header, [_row(record, records) for record in records])


def _row(record: Record, records: list[Record]) -> list[str]:
    k, peak = record["projected_dim"], record["peak_bytes"]
    median, shortest, longest = (f"{record[name] * 1e3:,.1f}" for name in ("median_s", "min_s", "max_s"))
    ratios = [saved(record, records, field) for field in ("median_s", "peak_bytes")]
    time_saved, memory_saved = ("–" if ratio is None else f"{ratio:.2f} ×" for ratio in ratios)
    return [
        f"{record['seq_len']:,}",
        f"{record['batch']:,}",
        "Transformer" if k is None else f"Linformer, k {k:,}",
        f"{median} ({shortest} – {longest})",
        time_saved,
        "–" if peak is None else f"{peak / 2**20:,.1f}",
        memory_saved,
    ]
