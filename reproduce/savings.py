"""Tables and figure of the time and memory that a Linformer saves, from the results of `table3_figure2`."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import Any, Literal

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linformer_kit.analysis.measure import MODES, Encoder, encoder_of
from linformer_kit.report.figures import new_figure
from reproduce.common import Record, length_axis, markdown

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
PRODUCT = 8192  # rows and columns of the matrices whose product is the best of a card


def operations(encoder: Encoder, mode: str) -> float:
    """Floating-point operations of the products of one layer for one token; a backward pass has twice as many.

    A Linformer compresses its input once, as E = F, and maps k slots to keys and values.
    """
    width, n, k = encoder.hidden_size, encoder.seq_len, encoder.projected_dim
    keys_and_values = 2 * n * width if k is None else k * width + 2 * k * width
    mapped = 2 * width**2 + 2 * width**2 * (1 if k is None else k / n) + 2 * width * encoder.intermediate_size
    return 2 * (mapped + keys_and_values) * (3 if mode == "train" else 1)


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
        widths: Any = SimpleNamespace(**settings)
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
