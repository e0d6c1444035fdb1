"""Table 3 and Figure 2: time and memory that a Linformer saves over a Transformer of equal size, by n and k.

The paper, on one V100 with 16 GB: 1.5 × faster and 1.7 × larger batches at n 512, k 128, up to 20 × and 60 × at
n 65,536; the time of inference per token does not grow with n (Figure 2). It compared with attention that stores its
n × n scores (`eager`); libraries of today use fused kernels (`roberta`, `full`), against which less is saved.

    python -m reproduce.table3_figure2                                      # an hour on 2 cores
    python -m reproduce.table3_figure2 --modes forward train                # and forward and backward
    python -m reproduce.table3_figure2 --device cuda --modes forward train --compile no default     # 12 layers
    python -m reproduce.table3_figure2 --lengths 512 4096 --projected_dims 256 --memory false      # two minutes

Not measured: eager attention whose scores would take over 40 % of the free memory, and the memory of Transformers whose
pass takes over 10 s.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import field, replace
from typing import Literal

import pandas
import psutil
import torch
from torch import nn
from tqdm import tqdm

from linformer_cli.errors import InputError, out_of_memory
from linformer_cli.settings.declare import Count, Counts, Measurement, settings
from linformer_kit.analysis.measure import (
    Encoder,
    Kind,
    Mode,
    batch_of,
    build,
    can_measure_memory,
    dtype_of,
    encoder_of,
    interleaved,
    memory_of,
    peak_bytes,
    random_ids,
    runner,
    summary,
)
from linformer_kit.report.environment import device_of
from reproduce.common import CostSettings, Record, Results, run
from reproduce.savings import BASELINES, BUDGET, LAYERS, PRODUCT, Baseline, draw, largest_batches, table

Compiled = Literal["no", "default", "reduce-overhead", "max-autotune-no-cudagraphs"]
Variant = tuple[Encoder, Compiled]

MEMORY_TOKENS = 16384  # large compared with the random few MB of a process
SECONDS = 10.0  # for all timed runs of one encoder at one length; memory of slower Transformers is not measured
COMPILING_RUNS = 3  # compiles, records and first replays CUDA graphs
SHARE_OF_FREE_MEMORY = 0.4  # for eager attention


@settings
class Settings(CostSettings):
    """Measure time and memory of Linformers and of Transformers of equal size."""

    modes: Measurement[list[Mode]] = field(default_factory=lambda: ["forward"])
    """A forward pass, and forward and backward as in training (train)."""
    lengths: Measurement[Counts] = field(default_factory=lambda: [2**power for power in range(9, 17)])
    """Values of n in tokens."""
    projected_dims: Measurement[Counts] = field(default_factory=lambda: [128, 256, 512, 1024, 2048])
    """Values of k; all pairs with k < n are measured."""
    baselines: Measurement[list[Baseline]] = field(default_factory=lambda: list(BASELINES))
    """Transformers to compare with."""
    memory: Measurement[bool] = True
    """Measure memory too: on a CPU, on Linux only, in a process of its own; on a GPU also the largest batch that runs
    in 16 GiB."""
    compile: Measurement[list[Compiled]] = field(default_factory=lambda: ["no"])
    """Operation by operation (no), and with these modes of torch.compile."""
    compiled_dims: Measurement[Counts | None] = None
    """Values of k of the compiled Linformers; default: all."""
    batch_tokens: Measurement[Count | None] = None
    """Tokens in a timed batch; default: 4,096 on a CPU, 65,536 on a GPU."""


def measure(settings: Settings, results: Results) -> None:
    """Add a record of the time of each encoder, and one of its memory."""
    device = device_of(settings.device)
    if device.type == "cuda" and results.find(measured="product") is None:
        results.add(measured="product", dtype=dtype_of(settings.dtype, device), rate=best_product(settings, device))
    if settings.memory and not can_measure_memory(device):
        raise InputError("memory: expected false, because memory of a CPU is measured on Linux only, got true")
    for n in tqdm(sorted(settings.lengths), desc="lengths"):
        encoders = encoders_of(settings, n, LAYERS if device.type != "cpu" else 2 if n <= 8192 else 1)
        for mode in settings.modes:
            add_times(settings, variants(settings, encoders), mode, device, results)
            if settings.memory and "no" in settings.compile:
                for encoder in tqdm(encoders, desc=f"n {n:,}, {mode}, memory", leave=False):
                    add_memory(settings, encoder, mode, device, results)


def encoders_of(settings: Settings, n: int, layers: int) -> list[Encoder]:
    """The encoders of a length, Transformers first."""
    kinds: list[tuple[Kind, int | None]] = [(kind, None) for kind in settings.baselines]
    kinds += [("linformer", k) for k in sorted(settings.projected_dims) if k < n]
    return [encoder_of(settings, kind, n, k, num_hidden_layers=layers) for kind, k in kinds]


def variants(settings: Settings, encoders: list[Encoder]) -> list[Variant]:
    """The encoders as they are and compiled, without eager attention and Linformers of other k than asked for."""
    dims = settings.compiled_dims or settings.projected_dims
    return [
        (encoder, compiled)
        for compiled in settings.compile
        for encoder in encoders
        if compiled == "no" or encoder.kind in ("full", "roberta") or encoder.projected_dim in dims
    ]


def best_product(settings: Settings, device: torch.device) -> float:
    """Operations a second of a product of two random matrices of 8,192 × 8,192, the best that the device gives."""
    dtype = getattr(torch, dtype_of(settings.dtype, device))
    left, right = (torch.randn(PRODUCT, PRODUCT, device=device, dtype=dtype) for _ in range(2))
    runs = interleaved({"": lambda: [left @ right for _ in range(10)]}, device=device, repetitions=10)[""]
    return 10 * 2 * PRODUCT**3 / statistics.median(runs)


def key_of(encoder: Encoder, mode: Mode, measured: str, compiled: Compiled = "no") -> Record:
    """The fields that name a record; `compiled` is None for an encoder as it is."""
    named = {"encoder": encoder.kind, "k": encoder.projected_dim, "n": encoder.seq_len}
    return {"measured": measured, "mode": mode, **named, "compiled": None if compiled == "no" else compiled}


def add_times(settings: Settings, every: list[Variant], mode: Mode, device: torch.device, results: Results) -> None:
    """Time the encoders of one length alternately; on an accelerator with the peak memory beside all weights."""
    missing = [(encoder, how) for encoder, how in every if not results.find(**key_of(encoder, mode, "time", how))]
    dtype = dtype_of(settings.dtype, device)
    batch = batch_of(settings.batch_tokens, every[0][0].seq_len, device)
    torch.compiler.reset()  # programs of other lengths would count towards the limit of programs
    runs = {
        (encoder, how): compiled_run(encoder, how, batch, mode, device, getattr(torch, dtype))
        for encoder, how in missing
        if room(encoder, mode, device, dtype) >= batch
    }
    times = interleaved(runs, device=device, repetitions=settings.repetitions, seconds=SECONDS)
    for encoder, how in missing:
        key = key_of(encoder, mode, "time", how)
        key |= {"dtype": dtype, "layers": encoder.num_hidden_layers, "batch": batch}
        run = runs.get((encoder, how))
        measured: Record = {"skipped": True} if run is None else summary(times[encoder, how])
        if run is not None and device.type != "cpu":
            measured["peak_bytes"] = peak_bytes(run, device)
        results.add(**key, **measured)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def compiled_run(
    encoder: Encoder, compiled: Compiled, batch: int, mode: Mode, device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    """A function for one run of an encoder, after those that compile it."""
    model = build(encoder, device, dtype, mode)
    if compiled == "reduce-overhead":
        model.compile(mode=compiled, dynamic=False)  # whole: a graph's outputs are the inputs of the next one
    elif compiled != "no":
        # Layer by layer: one program for all of them, and compiled in the time of one.
        for layer in next(part for part in model.encoder.children() if isinstance(part, nn.ModuleList)):  # type: ignore[union-attr]
            layer.compile(mode=compiled, dynamic=False)
    run = runner(model, random_ids(encoder, batch, device), mode)
    for _ in range(0 if compiled == "no" else COMPILING_RUNS):
        run()
    return run


def add_memory(settings: Settings, encoder: Encoder, mode: Mode, device: torch.device, results: Results) -> None:
    """Peak memory of a few layers, on a GPU of all and the largest batch.

    In a forward pass layers use the same memory one after the other, so one is measured on a CPU; in training each
    keeps its own, and with several layers, memory needed only once counts less.
    """
    key = key_of(encoder, mode, "memory")
    if results.find(**key) is not None:
        return
    dtype = dtype_of(settings.dtype, device)
    kind = getattr(torch, dtype)
    timed = results.find(**key_of(encoder, mode, "time")) or {}
    slow = encoder.kind in ("full", "roberta") and timed.get("median_s", 0) > SECONDS
    layers = LAYERS if device.type != "cpu" else {"forward": 1, "train": 4}[mode]
    encoder = replace(encoder, num_hidden_layers=layers)
    batch = int(min(max(1, MEMORY_TOKENS // encoder.seq_len), room(encoder, mode, device, dtype)))
    if slow or batch == 0:
        results.add(**key, skipped=True)
        return
    try:
        peak = memory_of(encoder, batch, mode, device, kind)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        results.add(**key, skipped=True, failed=str(error).partition("\n")[0])
        return
    weights = weight_bytes(replace(encoder, num_hidden_layers=LAYERS), kind)
    record = {"batch": batch, "layers": layers, "peak_bytes": peak, "weight_bytes": weights}
    if device.type == "cuda":
        first = int(largest_batches(pandas.DataFrame([record | {"mode": mode}])).iloc[0])
        record["largest_batch"] = largest_batch(encoder, mode, device, kind, budget=BUDGET, first=first)
    results.add(**key, **record)


def room(encoder: Encoder, mode: Mode, device: torch.device, dtype: str) -> float:
    """Largest batch with which eager attention takes at most 40 % of the free memory; no limit for others.

    It stores scores, their softmax in float32 and its cast; a fifth more for the rest. In training every layer does.
    """
    if encoder.kind != "eager":
        return math.inf
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    scores = encoder.num_attention_heads * encoder.seq_len**2 * (2 * getattr(torch, dtype).itemsize + 4) * 1.2
    needed = scores * (encoder.num_hidden_layers + 1 if mode == "train" else 1)
    return SHARE_OF_FREE_MEMORY * free // needed


def largest_batch(
    encoder: Encoder, mode: Mode, device: torch.device, dtype: torch.dtype, *, budget: int, first: int
) -> int:
    """The largest batch that runs on a CUDA device within a budget in bytes, weights and gradients included.

    Batches are run, from the first guess on, 8 % larger or smaller each time, until one runs and the next does not; 0
    if not even one sequence fits. A training step has no optimiser.
    """
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(budget / torch.cuda.mem_get_info(device)[1], device)
    try:
        model = build(encoder, device, dtype, mode)
        batch, ran, failed = max(1, first), 0, None
        while batch > ran and (failed is None or batch < failed):
            torch.cuda.empty_cache()
            try:
                runner(model, random_ids(encoder, batch, device), mode)()
                ran, batch = batch, max(batch + 1, int(batch * 1.08))
            except torch.OutOfMemoryError:
                model.zero_grad(set_to_none=True)
                failed, batch = batch, min(batch - 1, int(batch / 1.08))
        return ran
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def weight_bytes(encoder: Encoder, dtype: torch.dtype) -> int:
    """Bytes of the parameters."""
    model = build(encoder, torch.device("meta"), dtype)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


if __name__ == "__main__":
    run(Settings, measure, table, draw)
