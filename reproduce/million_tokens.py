"""One pass of a Linformer of RoBERTa-base size over a million tokens: time per token beside 4,096 tokens, and memory.

The paper: time and memory are linear in n. Here: time per token stays the same, and a pass holds its hidden states once
and little else.

    python -m reproduce.million_tokens                                # six minutes on 2 cores with bfloat16, 6 GiB
    python -m reproduce.million_tokens --n 262144 --layers 2          # half a minute

The model of the long pass has random weights and is made for that length; the pass runs once, without a warm-up, in the
same fresh process after the short one.
"""

from __future__ import annotations

from typing import Any

import torch

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import Count, Encoder, Length, Measurement, settings
from linformer_kit.analysis.measure import (
    dtype_of,
    encoder_of,
    in_fresh_process,
    interleaved,
    peak_bytes,
    prepared,
    summary,
)
from linformer_kit.report.environment import device_of
from reproduce.common import CostSettings, Record, Results, markdown, run
from reproduce.table3_figure2 import weight_bytes

SECONDS = 60.0  # for all runs over the short sequence


@settings
class Settings(CostSettings):
    """Measure one pass over a very long sequence."""

    n: Measurement[Length] = 1_048_576
    """Number of tokens of the long sequence."""
    reference_length: Measurement[Length] = 4096
    """Number of tokens of the short sequence to compare its time per token with."""
    projected_dim: Encoder[Count] = 256
    """k, the number of slots."""
    layers: Encoder[Count] = 12
    """Number of layers."""
    vocab_size: Encoder[Count] = 50265
    """Number of tokens in the vocabulary."""


def measure(settings: Settings, results: Results) -> None:
    """Add a record for the short sequence and one for the long one."""
    for name in ("n", "reference_length"):
        if getattr(settings, name) <= settings.projected_dim:
            expected = f"more than projected_dim, {settings.projected_dim}"
            raise InputError(f"{name}: expected {expected}, got {getattr(settings, name)}")
    device = device_of(settings.device)
    if not results.content["records"]:
        for record in in_fresh_process(measure_both, settings, device, dtype_of(settings.dtype, device)):
            results.add(**record)


def measure_both(settings: Settings, device: torch.device, dtype: str) -> list[dict[str, Any]]:
    """Time the short sequence, then time one pass over the long one with its peak memory; in a fresh process."""
    kind = getattr(torch, dtype)
    depth = {"num_hidden_layers": settings.layers, "vocab_size": settings.vocab_size}
    lengths = (settings.reference_length, settings.n)
    short, long = (encoder_of(settings, "linformer", n, settings.projected_dim, **depth) for n in lengths)
    run_short, weights = prepared(short, 1, "forward", device, kind), weight_bytes(long, kind)
    runs = interleaved({"": run_short}, device=device, repetitions=settings.repetitions, seconds=SECONDS)[""]
    del run_short  # its memory
    run_long = prepared(long, 1, "forward", device, kind)
    taken: list[float] = []
    peak = peak_bytes(lambda: taken.extend(interleaved({"": run_long}, device=device, repetitions=0)[""]), device)
    return [
        {"n": short.seq_len, "dtype": dtype, **summary(runs)},
        {"n": long.seq_len, "dtype": dtype, **summary(taken), "peak_bytes": peak, "weight_bytes": weights},
    ]


def table(content: Record) -> str:
    """Time per token at both lengths, their ratio, and memory."""
    settings, (short, long) = content["settings"], content["records"]
    rows = [
        {
            "n": f"{record['n']:,}",
            "seconds": f"{record['median_s']:,.3f}",
            "token, µs": f"{record['median_s'] / record['n'] * 1e6:,.2f}",
            "runs": record["runs"],
        }
        for record in (short, long)
    ]
    hidden = long["n"] * settings["hidden_size"] * getattr(torch, long["dtype"]).itemsize
    ratio = (long["median_s"] / long["n"]) / (short["median_s"] / short["n"])
    return f"""# One pass over {long["n"]:,} tokens

Linformer encoder, {long["dtype"]}: {settings["layers"]} layers, width {settings["hidden_size"]:,},
{settings["num_attention_heads"]} heads, feed-forward {settings["intermediate_size"]:,},
k {settings["projected_dim"]:,}, one E = F in all layers, vocabulary {settings["vocab_size"]:,};
random weights and tokens; a model for each length.

{markdown(rows)}

- Time per token against that at {short["n"]:,}: {ratio:.3f} ×.
- Weights: {long["weight_bytes"] / 2**30:.3f} GiB. Hidden states of one layer: {hidden / 2**30:.3f} GiB.
- Peak memory during the long pass minus the memory in use before it, which includes the weights:
  {long["peak_bytes"] / 2**30:.3f} GiB, {long["peak_bytes"] / hidden:.2f} × the hidden states of one layer.
"""


if __name__ == "__main__":
    run(Settings, measure, table)
