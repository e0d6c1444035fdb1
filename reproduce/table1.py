"""Table 1: the complexity of encoder layers, measured.

The paper: O(n) for a recurrent layer, O(n²) for a Transformer, O(n√n) for a sparse one, O(n log n) for Reformer, O(n)
for a Linformer. Here: the time of one whole layer of each of these, of other efficient encoders, of our Linformer with
a sliding window and of other implementations of it, against n, and the exponent p in time ∝ nᵖ. This is time, not
accuracy: windows, blocks and hashes are those of each paper's own models.

    python -m reproduce.table1                                  # every system, n 512 to 16,384: half an hour on 2 cores
    python -m reproduce.table1 --dtype float32                  # FNet and Nyströmformer need it on a CPU
    python -m reproduce.table1 --systems linformer window-64 longformer full --projected_dims 128

Systems that are not installed (`pip install -e ".[peers]"`), fail or take over 10 s are listed with the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import field
from importlib import metadata
from itertools import count
from typing import Any

import pandas
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import Count, Counts, Measurement, settings
from linformer_kit.analysis.measure import dtype_of, encoder_of, interleaved, summary
from linformer_kit.report.environment import device_of
from reproduce.common import CostSettings, Record, Results, length_axis, markdown, new_panels, run
from reproduce.systems import SYSTEMS

OURS = "linformer"
# Panels of the figure, by title; each has ours too.
PANELS = {
    "Table 1 of the paper": ("recurrent", "transformer", "full", "sparse", "reformer"),
    "Other efficient encoders": ("longformer", "nystromformer", "fnet"),
    "With a sliding window": ("window-32", "window-64", "window-512"),
    "Other Linformers": ("plain", "lucidrains", "tatp22"),
}
MARKERS = ("o", "s", "^", "D", "v")
Key = tuple[str, int | None]  # system and k
SECONDS = 10.0  # for all runs of one layer at one length; a layer that takes longer is skipped at longer ones


@settings
class Settings(CostSettings):
    """Time one layer of each kind of encoder at several lengths."""

    systems: Measurement[list[str]] = field(default_factory=lambda: list(SYSTEMS))
    """Names of the systems to time (an unknown name lists them all)."""
    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384])
    """Values of n in tokens."""
    projected_dims: Measurement[Counts] = field(default_factory=lambda: [256])
    """Values of k of the Linformers; all pairs with k < n are measured."""
    tokens: Measurement[Count] = 4096
    """Number of tokens per batch, at least one sequence."""


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each system, k and n: its times, or the reason why it was not run."""
    for name in settings.systems:
        if name not in SYSTEMS:
            raise InputError(f"systems: expected some of {', '.join(SYSTEMS)}, got {name}")
    keys: list[Key] = [
        (name, k) for name in settings.systems for k in (settings.projected_dims if SYSTEMS[name].projected else [None])
    ]
    for n in tqdm(sorted(settings.lengths), desc="lengths"):
        missing = [(name, k) for name, k in keys if results.find(system=name, k=k, n=n) is None]
        measure_length(settings, n, missing, results)


def measure_length(settings: Settings, n: int, keys: list[Key], results: Results) -> None:
    """Time systems alternately at one length."""
    device = device_of(settings.device)
    dtype = dtype_of(settings.dtype, device)
    torch.manual_seed(0)
    hidden = torch.randn(max(1, settings.tokens // n), n, settings.hidden_size).to(device, getattr(torch, dtype))
    torch.compiler.reset()  # compilations for other lengths count towards a limit
    cases: dict[str, Callable[[], object]] = {}
    reasons: dict[Key, str] = {}
    for key in tqdm(keys, desc=f"n {n:,}", leave=False):
        try:
            check_possible(key, n, results)
            cases[str(key)] = ready(settings, key, hidden)
        except Exception as error:  # any error of a library is its result
            reasons[key] = reason_of(error, key[0])
    timings = interleaved(cases, device=device, repetitions=settings.repetitions, seconds=SECONDS)
    for key in keys:
        record: dict[str, Any] = {"system": key[0], "k": key[1], "n": n, "dtype": dtype, "package": version(key[0])}
        if key in reasons:
            results.add(**record, skipped=reasons[key])
        else:
            results.add(**record, batch=len(hidden), **summary(timings[str(key)]))


def check_possible(key: Key, n: int, results: Results) -> None:
    """Raise `InputError` if a layer has no smaller k, or took too long at a shorter length."""
    k = key[1]
    if k is not None and k >= n:
        raise InputError(f"k {k} is not below n")
    for record in results.content["records"]:
        if (record["system"], record["k"]) == key and record.get("median_s", 0) > SECONDS and record["n"] < n:
            seconds, shorter = record["median_s"], record["n"]
            raise InputError(f"took {seconds:.3g} s at n {shorter:,}, more than {SECONDS:g} s")


def ready(settings: Settings, key: Key, hidden: Float[Tensor, "batch seq_len embed"]) -> Callable[[], Tensor]:
    """The function that runs a layer, after a first run, which includes compilation and is checked."""
    sizes = encoder_of(settings, "linformer", hidden.shape[1], key[1], num_hidden_layers=1, vocab_size=8)
    torch.manual_seed(0)
    layer = SYSTEMS[key[0]].build(sizes, hidden.device).to(hidden.device, hidden.dtype).eval()
    one_run: Callable[[], Tensor] = torch.inference_mode()(lambda: layer(hidden))
    output = one_run()
    if output.shape != hidden.shape or not output.isfinite().all():
        raise InputError(f"expected finite {list(hidden.shape)}, got {list(output.shape)} with NaN or infinity")
    return one_run


def version(name: str) -> str | None:
    """The package that a system comes from, with its version."""
    package = SYSTEMS[name].package
    try:
        return f"{package} {metadata.version(package)}" if package else None
    except metadata.PackageNotFoundError:
        return None


def reason_of(error: Exception, name: str) -> str:
    """The reason for a missing time, in one line."""
    if isinstance(error, ModuleNotFoundError) and SYSTEMS[name].package:
        return f'{error.name} is not installed: pip install "linformer-kit[peers]"'
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if isinstance(error, InputError) else ": ".join([f"failed with {type(error).__name__}", *lines[:1]])


def fitted_exponent(lengths: list[int], seconds: list[float]) -> tuple[float, list[int]] | None:
    """p in time ∝ nᵖ for one sequence, and the lengths of the fit; None for fewer than two lengths.

    Least squares of log time on log n over the longer half of the lengths, which ascend, at least two: at short lengths
    the feed-forward part dominates.
    """
    upper = max(2, math.ceil(len(lengths) / 2))
    if len(lengths) < 2:
        return None
    logs = [list(map(math.log, values[-upper:])) for values in (lengths, seconds)]
    return statistics.linear_regression(*logs).slope, lengths[-upper:]


def timed(content: Record) -> pandas.DataFrame:
    """The records with times, with `label`, and `per_token_s`."""
    frame = pandas.DataFrame([record for record in content["records"] if "median_s" in record])
    frame["label"] = [label(name, k) for name, k in zip(frame["system"], frame["k"], strict=True)]
    frame["per_token_s"] = frame["median_s"] / (frame["batch"] * frame["n"])
    return frame


def label(name: str, k: float | None) -> str:
    """The name of a system, with its k, in tables."""
    return SYSTEMS[name].label if k is None or math.isnan(k) else f"{SYSTEMS[name].label}, k {k:.0f}"


def table(content: Record) -> str:
    """Times with exponents, the systems, our time beside that of other Linformers, and what was not run."""
    settings = content["settings"]
    frame = timed(content)
    packages = {record["system"]: record["package"] for record in content["records"]}
    rows = []
    for name, times in frame.groupby("label", sort=False):
        row = {"system": name, "complexity": SYSTEMS[times["system"].iloc[0]].complexity}
        row |= {f"n {n:,}": f"{t * 1e6:,.3g}" for n, t in zip(times["n"], times["per_token_s"], strict=True)}
        fit = fitted_exponent(list(times["n"]), list(times["median_s"] / times["batch"]))
        rows.append(row | ({"p": f"{fit[0]:.2f}", "fitted over n": ", ".join(map(str, fit[1]))} if fit else {}))
    columns = ["system", "complexity", *(f"n {n:,}" for n in sorted(frame["n"].unique())), "p", "fitted over n"]
    systems = [
        {
            "system": SYSTEMS[name].label,
            "complexity": SYSTEMS[name].complexity,
            "measured": "; ".join(filter(None, (SYSTEMS[name].note, packages[name]))),
        }
        for name in settings["systems"]
    ]
    return f"""# Table 1: one layer of each kind of encoder

One encoder layer, feed-forward part included: width {settings["hidden_size"]}, {settings["num_attention_heads"]} heads,
feed-forward {settings["intermediate_size"]}, {frame["dtype"].iloc[0]}, about {settings["tokens"]:,} tokens in a batch,
at least one sequence. Time of a forward pass per token in µs, median; p in time ∝ nᵖ for one sequence,
fitted over the lengths given.

{markdown(rows, columns)}

## Systems

{markdown(systems)}
{against_peers(frame)}{not_run(content)}"""


def against_peers(frame: pandas.DataFrame) -> str:
    """The time of each other Linformer without a window divided by ours, at equal n and k."""
    peers = frame[frame["system"].isin(PANELS["Other Linformers"])]
    ours = frame[frame["system"] == OURS].set_index(["n", "k"])["per_token_s"]
    if peers.empty or ours.empty:
        return ""
    times = peers.pivot(index=["n", "k"], columns="system", values="per_token_s")
    ratios = times[peers["system"].unique()].div(ours, axis=0).rename(columns=lambda name: SYSTEMS[name].label).dropna()
    means = ratios.map(math.log).mean().map(math.exp)
    shown = ratios.reset_index().astype({"n": int, "k": int})
    shown["n"] = shown["n"].map("{:,}".format)
    shown.loc[len(shown)] = ["geometric mean", "", *means]
    shown = shown.map(lambda value: f"{value:.2f}" if isinstance(value, float) else value)
    return f"\n## Ours against other Linformers\n\nTheir time divided by ours.\n\n{markdown(shown)}\n"


def not_run(content: Record) -> str:
    """The systems without times, and why."""
    skipped = pandas.DataFrame([record for record in content["records"] if "skipped" in record])
    if skipped.empty:
        return ""
    skipped["system"] = [label(name, k) for name, k in zip(skipped["system"], skipped["k"], strict=True)]
    skipped["why"] = skipped["skipped"].str.replace("|", "¦")
    lengths = skipped.groupby(["system", "why"], sort=False)["n"].agg(lambda values: ", ".join(map(str, values)))
    return f"\n## Not run\n\n{markdown(lengths.reset_index()[['system', 'n', 'why']])}\n"


def draw(content: Record) -> Figure:
    """Time per token against n, in panels of at most six lines; ours, with its smallest k, is black in each."""
    frame = timed(content)
    frame = frame[frame["k"].isna() | (frame["k"] == frame["k"].min())]
    titles = [title for title, names in PANELS.items() if frame["system"].isin(names).any()] or [""]
    figure, panels = new_panels(len(titles), (5, 4.2), sharey=True)
    for axes, title in zip(panels, titles, strict=True):
        markers = count()
        for name, times in frame[frame["system"].isin([OURS, *PANELS.get(title, ())])].groupby("label", sort=False):
            is_ours = times["system"].iloc[0] == OURS
            fit = fitted_exponent(list(times["n"]), list(times["median_s"] / times["batch"]))
            axes.plot(
                times["n"],
                times["per_token_s"] * 1e6,
                color="black" if is_ours else None,
                marker="P" if is_ours else MARKERS[next(markers)],
                linewidth=3 if is_ours else 1.5,
                label=f"{name}: p {fit[0]:.2f}" if fit else name,
            )
        length_axis(axes, content["settings"]["lengths"])
        axes.set_ylabel("time per token (µs)")
        axes.set_title(title)
        axes.legend(title="p: time of a sequence ∝ nᵖ", fontsize=8, title_fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
