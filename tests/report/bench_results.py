"""Results of `bench efficiency` made by hand: every time and memory follows from n and k."""

from __future__ import annotations

from typing import Any

from linformer_kit.experiments import paper
from linformer_kit.experiments.cost.efficiency import compare

ENVIRONMENT = {
    "date": "2020-06-08",
    "device": "a machine",
    "threads": 2,
    "cpu_capability": "AVX512",
    "python": "3.11.0",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "linformer_kit": "0.1.0",
    "commit": None,
}
SETTINGS = {
    "dtype": "bfloat16",
    "mode": "forward",
    "baselines": ["eager", "full", "roberta"],
    "memory": True,
    "budget_gib": 16.0,
    "repetitions": 5,
    "seconds": 10.0,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
RATES = {
    "gemm": {"square": 4096, "by": "F.linear", "flop_per_second": 6e11, "each": {"F.linear": 6e11}},
    "copy": {"bytes": 2**29, "bytes_per_second": 3e10},
}
MEASURED_EAGER = 8192  # the longest


def efficiency_results(lengths: list[int] | None = None, **settings: Any) -> dict[str, Any]:
    """A whole JSON, the comparisons made by `compare`: time a + b·n per token, memory likewise."""
    table = paper.TIME_SAVED if lengths is None else {n: paper.TIME_SAVED[n] for n in lengths}
    results: dict[str, Any] = {
        "complete": True,
        "environment": ENVIRONMENT,
        "settings": SETTINGS | settings,
        **RATES,
        "baselines": [_baseline(name, n) for n in table for name in (SETTINGS | settings)["baselines"]],
        "cells": [_cell(n, k) for n, dims in table.items() for k in dims],
    }
    compare(results)
    return results


def _baseline(name: str, n: int) -> dict[str, Any]:
    slow = {"eager": 2e-8, "full": 1e-8, "roberta": 1.1e-8}[name]
    entry = _entry(n, 2e-5 + slow * n, (2e5 if name == "eager" else 2e4) * (1 + n / 1024 * (name == "eager")))
    if name == "eager" and n > MEASURED_EAGER:
        entry |= {"time": None, "memory": None}
        del entry["seconds_per_token_layer"]
    return {"name": name, **entry}


def _cell(n: int, k: int) -> dict[str, Any]:
    share = {"share_of_products": 0.83}
    return {"projected_dim": k, **_entry(n, 1.5e-5 + 8e-9 * k, 2e4 + 10 * k), **share}


def _entry(n: int, per_token: float, memory_per_token: float) -> dict[str, Any]:
    batch = max(1, 4096 // n)
    median = per_token * n * batch
    memory = {
        "batch": 4,
        "layers": 1,
        "peak_bytes": int(4 * memory_per_token * n),
        "bytes_per_sample": memory_per_token * n,
        "weight_bytes": 2**28,
        "extrapolated": False,
    }
    memory["largest_batch"] = (16 * 2**30 - 2**28) / memory["bytes_per_sample"]
    return {
        "seq_len": n,
        "batch": batch,
        "layers": 1,
        "time": {"median_s": median, "min_s": 0.9 * median, "max_s": 1.2 * median, "runs": 5},
        "seconds_per_token_layer": per_token,
        "extrapolated": False,
        "layer_flop": 10**10,
        "layer_bytes": 10**8,
        "bound_by": "compute",
        "share_of_machine": 0.71,
        "memory": memory,
    }
