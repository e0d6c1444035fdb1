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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn
from tqdm import tqdm

from linformer_cli.errors import InputError, out_of_memory
from linformer_cli.settings.declare import Count, Counts, Measurement, settings
from linformer_kit.analysis.measure import (
    MODES,
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
from linformer_kit.report.figures import new_figure
from reproduce.common import CostSettings, Record, Results, length_axis, markdown, run

Compiled = Literal["no", "default", "reduce-overhead", "max-autotune-no-cudagraphs"]
Variant = tuple[Encoder, Compiled]

# The paper's Table 3, by n and k: time of the Transformer's forward pass over the Linformer's, and largest batch of the
# Linformer in 16 GB over the Transformer's.
Published = dict[int, dict[int, float]]
PAPER_TIME: Published = {
    512: {128: 1.5, 256: 1.3},
    1024: {128: 1.7, 256: 1.6, 512: 1.3},
    2048: {128: 2.6, 256: 2.4, 512: 2.1, 1024: 1.3},
    4096: {128: 3.4, 256: 3.2, 512: 2.8, 1024: 2.2, 2048: 1.3},
    8192: {128: 5.5, 256: 5.0, 512: 4.4, 1024: 3.5, 2048: 2.1},
    16384: {128: 8.6, 256: 7.8, 512: 7.0, 1024: 5.6, 2048: 3.3},
    32768: {128: 13, 256: 12, 512: 11, 1024: 8.8, 2048: 5.0},
    65536: {128: 20, 256: 18, 512: 16, 1024: 14, 2048: 7.9},
}
PAPER_MEMORY: Published = {
    512: {128: 1.7, 256: 1.5},
    1024: {128: 3.0, 256: 2.9, 512: 1.8},
    2048: {128: 6.1, 256: 5.6, 512: 3.6, 1024: 2.0},
    4096: {128: 14, 256: 13, 512: 8.3, 1024: 4.3, 2048: 2.3},
    8192: {128: 28, 256: 26, 512: 17, 1024: 8.5, 2048: 4.5},
    16384: {128: 56, 256: 48, 512: 32, 1024: 16, 2048: 8},
    32768: {128: 56, 256: 48, 512: 36, 1024: 18, 2048: 16},
    65536: {128: 60, 256: 52, 512: 40, 1024: 20, 2048: 18},
}
Baseline = Literal["full", "roberta", "eager"]
BASELINES: dict[Baseline, str] = {
    "full": 'this package\'s, attention="full" (scaled_dot_product_attention)',
    "roberta": "transformers' RobertaModel (scaled_dot_product_attention)",
    "eager": "transformers' RobertaModel with a stored n × n matrix (eager), as in the paper",
}
LAYERS = 12  # of the models for which the largest batches are given
BUDGET = 16 * 2**30  # bytes, as in the paper
MEMORY_TOKENS = 16384  # large compared with the random few MB of a process
SECONDS = 10.0  # for all timed runs of one encoder at one length; memory of slower Transformers is not measured
COMPILING_RUNS = 3  # compiles, records and first replays CUDA graphs
PRODUCT = 8192  # rows and columns of the matrices whose product is the best of a card
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


def operations(encoder: Encoder, mode: str) -> float:
    """Floating-point operations of the products of one layer for one token; a backward pass has twice as many.

    A Linformer compresses its input once, as E = F, and maps k slots to keys and values.
    """
    width, n, k = encoder.hidden_size, encoder.seq_len, encoder.projected_dim
    keys_and_values = 2 * n * width if k is None else k * width + 2 * k * width
    mapped = 2 * width**2 + 2 * width**2 * (1 if k is None else k / n) + 2 * width * encoder.intermediate_size
    return 2 * (mapped + keys_and_values) * (3 if mode == "train" else 1)


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


def times(content: Record, mode: str) -> pandas.DataFrame:
    """The times of a mode, `cost`: seconds of one layer for one token, and `rate`: tokens in a second."""
    frame = records_of(content, mode, "time")
    frame["cost"] = frame["median_s"] / (frame["batch"] * frame["n"] * frame["layers"])
    return frame.assign(rate=1 / frame["cost"])


def memories(content: Record, mode: str) -> pandas.DataFrame:
    """The memory of a mode, `cost`: bytes of a sequence, and `rate`: the largest batch, run or computed."""
    frame = records_of(content, mode, "memory")
    ran = frame["largest_batch"] if "largest_batch" in frame else largest_batches(frame)
    return frame.assign(cost=frame["peak_bytes"] / frame["batch"], rate=ran)


def largest_batches(frame: pandas.DataFrame) -> pandas.Series:
    """The batch of a model of 12 layers in the budget, computed, not rounded.

    Weights count twice in training, for their gradients, and the memory of fewer layers is scaled up.
    """
    train = frame["mode"] == "train"
    free = BUDGET - frame["weight_bytes"] * (1 + train)
    layers = (frame["layers"] / LAYERS).where(train, 1.0)
    return free.clip(lower=0) / (frame["peak_bytes"] / frame["batch"]) * layers


def records_of(content: Record, mode: str, measured: str) -> pandas.DataFrame:
    """The records with measurements of one kind, by n, Transformers first."""
    frame = pandas.DataFrame(content["records"])
    frame = frame[(frame["mode"] == mode) & (frame["measured"] == measured)]
    frame = frame.assign(compiled=frame["compiled"].fillna("no") if "compiled" in frame else "no")
    if "skipped" in frame:
        frame = frame[frame["skipped"].isna()]
    place = frame["encoder"].map([*BASELINES, "linformer"].index)
    order = frame["compiled"].map(content["settings"].get("compile", ["no"]).index)
    keys = ["n", "order", "place", "k"]
    return frame.assign(order=order, place=place, n=frame["n"].astype(int)).sort_values(keys, ignore_index=True)


def saved(frame: pandas.DataFrame, baseline: str) -> pandas.DataFrame:
    """The Linformer's rate over the baseline's, `ratio`, for each n and k where both were measured."""
    ours = frame[frame["encoder"] == "linformer"].astype({"k": int})
    theirs = frame[frame["encoder"] == baseline].set_index("n")["rate"]
    theirs = theirs[theirs > 0]
    return ours[["n", "k"]].assign(ratio=ours["rate"] / ours["n"].map(theirs)).dropna()


def grid(ratios: pandas.DataFrame, paper: Published) -> str:
    """A table with a row for each n and a column for each k, the paper's figure in parentheses; and how near we are."""
    if ratios.empty:
        return "Not measured."
    cells: dict[int, dict[str, str]] = {}
    against: dict[str, float] = {}
    for n, k, ratio in ratios.itertuples(index=False):
        published = paper.get(n, {}).get(k)
        cell = f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.1f}"
        cells.setdefault(n, {"n": f"{n:,}"})[f"k {k:,}"] = cell + (f" ({published:g})" if published else "")
        if published:
            against[f"n {n:,}, k {k:,}"] = ratio / published
    text = markdown(pandas.DataFrame(cells.values()).fillna(""))
    if not against:
        return text
    least = min(against, key=lambda cell: against[cell])
    mean = statistics.geometric_mean(against.values())
    return (
        f"{text}\n\nRatio to the paper's figure: geometric mean of {len(against)} cells {mean:.2f}; "
        f"lowest at {least}: {against[least]:.2f}."
    )


def name_of(encoder: str, k: float, compiled: str = "no") -> str:
    """The encoder's name in a table."""
    name = f"Linformer, k {k:,.0f}" if encoder == "linformer" else f"Transformer, {encoder}"
    return name if compiled == "no" else f"{name}, {label(compiled)}"


def label(compiled: str) -> str:
    """A mode of compiling in words."""
    return "compiled" if compiled == "default" else f"compiled ({compiled})"


def time_table(settings: Record, frame: pandas.DataFrame, product: float | None) -> str:
    """Time of a batch, and of one layer per token; on a GPU also memory and the share of its best product."""
    shown = pandas.DataFrame({"n": frame["n"].map("{:,}".format), "batch": frame["batch"].astype(int)})
    shown["layers"] = frame["layers"].astype(int)
    shown["encoder"] = list(map(name_of, frame["encoder"], frame["k"], frame["compiled"]))
    low, median, high = (frame[name].mul(1e3).map("{:,.1f}".format) for name in ("min_s", "median_s", "max_s"))
    shown["batch, ms"] = median
    shown["least – most, ms"] = low + " – " + high
    shown["runs"] = frame["runs"].astype(int)
    shown["token and layer, µs"] = frame["cost"].mul(1e6).map("{:,.3g}".format)
    if product is not None:
        widths = Settings(**{name: value for name, value in settings.items() if name != "device"})
        needed = [
            operations(encoder_of(widths, kind, n, None if math.isnan(k) else int(k)), mode)
            for kind, n, k, mode in frame[["encoder", "n", "k", "mode"]].itertuples(index=False)
        ]
        shown["share of the best product"] = (needed / frame["cost"] / product).map("{:.2f}".format)
        shown["peak, MiB"] = frame["peak_bytes"].div(2**20).map("{:,.0f}".format)
    return markdown(shown)


def memory_table(frame: pandas.DataFrame) -> str:
    """Memory of a sequence, and the largest batch."""
    shown = pandas.DataFrame({"n": frame["n"].map("{:,}".format)})
    shown["encoder"] = list(map(name_of, frame["encoder"], frame["k"]))
    peak, batch = frame["peak_bytes"].div(2**20).map("{:,.0f}".format), frame["batch"].map("{:,.0f}".format)
    shown["peak, MiB (batch)"] = peak + " (" + batch + ")"
    shown["sequence, MiB"] = frame["cost"].div(2**20).map("{:,.1f}".format)
    name = "largest batch, run" if "largest_batch" in frame else "largest batch, computed"
    shown[name] = frame["rate"].astype(int).map("{:,}".format)
    return markdown(shown)


def table(content: Record) -> str:
    """Time and memory saved against each Transformer, with the paper's figures, then the measurements."""
    settings = content["settings"]
    dtype = next(record["dtype"] for record in content["records"] if record["measured"] == "time")
    product = next((record["rate"] for record in content["records"] if record["measured"] == "product"), None)
    rate = (product or 0.0) / 1e12
    ran = f"""found by running them.
The best product of the card, of two matrices of {PRODUCT:,} × {PRODUCT:,}, has {rate:,.0f} TFLOP/s; its share
counts the products of a pass alone. Compiled: torch.compile of each layer; reduce-overhead: of the model."""
    parts = [
        f"""# Table 3 and Figure 2: time and memory saved, {dtype}

Encoders of width {settings["hidden_size"]:,}, {settings["num_attention_heads"]} heads,
feed-forward {settings["intermediate_size"]:,}, random weights and tokens; Linformers share one E = F in all layers.
n: tokens in a sequence; k: projected dimension. In parentheses the paper's figures (one V100).
Times are medians of up to {settings["repetitions"]} runs, encoders alternating, embeddings included.
A training step has no optimiser and no dropout.
Memory is the peak of a run minus the memory in use before (allocated memory on a GPU; on a CPU the resident set of a
process of its own); saved is the ratio of the largest batches in 16 GiB beside the weights of 12 layers,
{"computed from the memory of a sequence, not rounded." if product is None else ran}"""
    ]
    for mode in settings["modes"]:
        for what in ("time", "memory") if settings["memory"] else ("time",):
            frame = times(content, mode) if what == "time" else memories(content, mode)
            for kind, part in frame.groupby("compiled", sort=False):
                suffix = "" if kind == "no" else f", both {label(str(kind))}"
                for name in (name for name in BASELINES if name in set(part["encoder"])):
                    ratios = grid(saved(part, name), paper_of(mode, what == "time"))
                    parts.append(f"## {MODES[mode]}: {what} saved against {BASELINES[name]}{suffix}\n\n{ratios}")
            measured = time_table(settings, frame, product) if what == "time" else memory_table(frame)
            parts.append(f"## {MODES[mode]}: {what}\n\n{measured}")
    return "\n\n".join(parts)


def paper_of(mode: str, of_time: bool) -> Published:
    """The paper's figures; it has none for training."""
    return {} if mode == "train" else PAPER_TIME if of_time else PAPER_MEMORY


def draw(content: Record) -> Figure:
    """A row for each mode: time per token (Figure 2), then time and memory saved against the first Transformer."""
    settings = content["settings"]
    columns = 3 if settings["memory"] else 2
    rows = len(settings["modes"])
    figure, panels = new_figure((4.6 * columns, 4.2 * rows), rows, columns, squeeze=False)
    first = next(name for name in BASELINES if name in settings["baselines"])
    for row, mode in zip(panels, settings["modes"], strict=True):
        frame = uncompiled(times(content, mode))
        draw_times(row[0], frame)
        row[0].set_title(MODES[mode])
        for axes, rates, what in zip(row[1:], (times, memories), ("time", "memory (largest batch)"), strict=False):
            draw_saved(axes, saved(uncompiled(rates(content, mode)), first), paper_of(mode, rates is times))
            axes.set_title(f"against Transformer, {first}")
            axes.set_ylabel(f"{what} saved, ×")
        for axes in row:
            length_axis(axes, sorted(frame["n"].unique()))
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
    return figure


def uncompiled(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The records of encoders as they are, or of all if all are compiled."""
    plain = frame[frame["compiled"] == "no"]
    return plain if len(plain) else frame


def drawn_dims(frame: pandas.DataFrame) -> list[int]:
    """Three values of k from the smallest to the largest; the tables have all."""
    dims = sorted(frame["k"].dropna().astype(int).unique())
    return sorted({*dims[:1], *dims[(len(dims) - 1) // 2 :][:1], *dims[-1:]})


def draw_times(axes: Axes, frame: pandas.DataFrame) -> None:
    """Time per token of the Transformers and of some Linformers."""
    for name, style in zip(BASELINES, ("-", "--", ":"), strict=True):
        line = frame[frame["encoder"] == name]
        if len(line):
            label = name_of(name, math.nan)
            axes.plot(line["n"], line["cost"] * 1e6, f"s{style}", color="black", markersize=4, label=label)
    for k in drawn_dims(frame):
        line = frame[frame["k"] == k]
        axes.plot(line["n"], line["cost"] * 1e6, marker="o", markersize=4, label=name_of("linformer", k))
    axes.set_ylabel("time per token and layer, µs")


def draw_saved(axes: Axes, ratios: pandas.DataFrame, paper: Published) -> None:
    """A line for some k, the paper's dashed in the same colour."""
    for k in drawn_dims(ratios):
        line = ratios[ratios["k"] == k]
        (drawn,) = axes.plot(line["n"], line["ratio"], marker="o", markersize=4, label=f"k {k:,}")
        published = {n: paper[n][k] for n in line["n"] if k in paper.get(n, {})}
        if published:
            axes.plot(*zip(*published.items(), strict=True), "--", color=drawn.get_color(), label=f"k {k:,}, the paper")
    axes.axhline(1, color="gray", linewidth=1)


if __name__ == "__main__":
    run(Settings, measure, table, draw)
