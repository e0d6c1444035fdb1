"""Time and memory that a Linformer saves over Transformers of equal size: Table 3 and Fig 2 of the paper.

`linformer bench efficiency` measures one length after the other, encoders alternating, and writes after each length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from linformer_kit.experiments import paper
from linformer_kit.experiments.cost.ceiling import machine_rates, products_summary, slot_products, token_products
from linformer_kit.experiments.cost.encoders import VOCAB_SIZE, Encoder, build, random_ids, runner, score_bytes
from linformer_kit.experiments.cost.memory import (
    TOKENS,
    extrapolate,
    free_bytes,
    largest_batch,
    measure_memory,
)
from linformer_kit.experiments.cost.operations import TRAINING, bound, layer_cost
from linformer_kit.experiments.experiment import Experiment, require
from linformer_kit.experiments.measure import busy_cores, interleaved, summary
from linformer_kit.experiments.prepare import check, check_memory, default_tokens, pairs, torch_dtype, with_dtype
from linformer_kit.report.efficiency import write_efficiency_report
from linformer_kit.settings import portable
from linformer_kit.settings.bench import EfficiencySettings

_LENGTHS = [2**power for power in range(9, 17)]
_LONGEST_TRAINED = 8192  # by default, on a CPU
_LONGEST_TWO_LAYERS = 8192  # on a CPU
_SHARE_OF_FREE_MEMORY = 0.4  # maximum for eager attention
# On a CPU. In training each layer keeps its activations; with several layers, memory needed only once counts less.
_MEMORY_LAYERS = {"forward": 1, "train": 4}
_LONGEST_MEMORY_RUN = 10.0  # seconds; memory of slower Transformers is extrapolated


def main(settings: EfficiencySettings) -> None:
    """Measure, write and print."""
    device = check(settings)
    settings, by_length = _settled(with_dtype(settings, device), device)
    measure_efficiency(settings, by_length, device).show()


def _settled(settings: EfficiencySettings, device: torch.device) -> tuple[EfficiencySettings, dict[int, list[int]]]:
    """Settings with dependent defaults filled in, and the values of k for each n."""
    cpu_training = settings.mode == "train" and device.type == "cpu"
    lengths = [n for n in _LENGTHS if n <= _LONGEST_TRAINED or not cpu_training]
    lengths = lengths if settings.lengths is None else settings.lengths
    check_memory(settings.memory, device)
    require(settings.busy_cores >= 0, "busy_cores", "0 or more", settings.busy_cores)
    tokens = default_tokens(settings.tokens, device)
    baselines = list(dict.fromkeys(settings.baselines))
    by_length = pairs(lengths, settings.projected_dims)
    return dataclasses.replace(settings, lengths=list(by_length), tokens=tokens, baselines=baselines), by_length


def measure_efficiency(
    settings: EfficiencySettings, by_length: dict[int, list[int]], device: torch.device
) -> Experiment:
    """Measure all lengths, and write the report after each.

    Args:
        settings: Settings with `tokens` filled in.
        by_length: The values of k to measure for each n.
        device: Device to measure.

    Returns:
        The results as in `efficiency.json`: the rates of the machine, `baselines` and `cells`, `complete`.
    """
    experiment = Experiment(
        "bench efficiency",
        settings.output_dir,
        device=device,
        settings=portable(settings),
        write=write_efficiency_report,
        fields={"complete": False, "baselines": [], "cells": []},
    )
    results = experiment.results
    runs = settings.repetitions + settings.memory
    total = sum(len(dims) + len(settings.baselines) for dims in by_length.values()) * runs
    with experiment, busy_cores(settings.busy_cores):
        try:
            with tqdm(total=total, unit="run", dynamic_ncols=True, desc="best rates") as bar:
                results |= machine_rates(settings, device)
                for n, dims in by_length.items():
                    _Length(n, dims, settings, device, bar).measure(results)
                    compare(results)
                    experiment.save()
            results["complete"] = True
        finally:
            if results["cells"]:
                compare(results)
                experiment.save()
    return experiment


@dataclasses.dataclass
class _Length:
    """The measurements at one length."""

    seq_len: int
    dims: list[int]
    settings: EfficiencySettings
    device: torch.device
    bar: tqdm
    said: str = ""

    def __post_init__(self) -> None:
        default = 12 if self.device.type != "cpu" else 2 if self.seq_len <= _LONGEST_TWO_LAYERS else 1
        self.layers = self.settings.layers or default
        self.batch = max(1, (self.settings.tokens or 0) // self.seq_len)

    def measure(self, results: dict[str, Any]) -> None:
        """Add baselines and cells, without comparisons: first their times, then memory."""
        baselines = [Encoder(kind=kind, seq_len=self.seq_len, layers=self.layers) for kind in self.settings.baselines]
        linformers = [
            Encoder(kind="linformer", seq_len=self.seq_len, layers=self.layers, projected_dim=k) for k in self.dims
        ]
        timed = [encoder for encoder in baselines if self._room(encoder) >= self.batch] + linformers
        timings = self._time(timed, results)
        torch.cuda.empty_cache()  # the processes that measure memory share the device
        entries = {encoder: self._entry(encoder, timings.get(encoder.name)) for encoder in baselines + linformers}
        results["baselines"] += [entries[encoder] for encoder in baselines]
        results["cells"] += [entries[encoder] for encoder in linformers]
        for encoder, entry in entries.items() if self.settings.memory else ():
            entry["memory"] = self._memory(encoder, entry)
            self.bar.update()

    def _entry(self, encoder: Encoder, timing: dict[str, Any] | None) -> dict[str, Any]:
        name = {"name": encoder.kind} if encoder.projected_dim is None else {"projected_dim": encoder.projected_dim}
        shape = {"seq_len": self.seq_len, **name, "batch": self.batch, "layers": self.layers}
        return {**shape, "memory": None, **(timing or {"time": None, "extrapolated": False})}

    def _time(self, encoders: list[Encoder], rates: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Time encoders, alternating with a layer's products alone; results by the encoder's name."""
        settings, n = self.settings, self.seq_len
        shared = token_products(n, self.batch, settings=settings, device=self.device)
        by_dim = {k: slot_products(n, k, self.batch, settings=settings, device=self.device) for k in self.dims}
        alone = {f"product {name}": product for name, product in shared.items()}
        alone |= {f"product {name}, k {k}": product for k, own in by_dim.items() for name, product in own.items()}
        timings = interleaved(
            self._runs(encoders) | {name: product.run for name, product in alone.items()},
            device=self.device,
            repetitions=settings.repetitions,
            seconds=settings.seconds,
            start=lambda name: self._say("timing products" if name in alone else f"timing {name}"),
            done=lambda name: self.bar.update(name not in alone),
        )
        entries = {}
        for encoder in encoders:
            taken, k = summary(timings[encoder.name]), encoder.projected_dim
            per_token = taken["median_s"] / (self.batch * n * self.layers)
            entry = {"time": taken, "extrapolated": False, "seconds_per_token_layer": per_token}
            if k is not None:
                own = {name: timings[f"product {name}"] for name in shared}
                own |= {name: timings[f"product {name}, k {k}"] for name in by_dim[k]}
                entry |= self._products_share(products_summary(shared | by_dim[k], own), taken["min_s"])
            entries[encoder.name] = entry | self._machine_share(k, taken["median_s"], rates)
        return entries

    def _runs(self, encoders: list[Encoder]) -> dict[str, Callable[[], object]]:
        """Build the encoders; return a function for each that runs it once."""
        ids = random_ids(self.batch, self.seq_len, VOCAB_SIZE, self.settings.seed, self.device)
        runs = {}
        for encoder in encoders:
            self._say(f"building {encoder.name}")
            model = build(encoder, self.settings, self.device, mode=self.settings.mode)
            runs[encoder.name] = runner(model, ids, self.settings.mode)
        return runs

    def _machine_share(self, projected_dim: int | None, seconds: float, rates: dict[str, Any]) -> dict[str, Any]:
        """The minimum time at the machine's best rates, as a share of the measured time."""
        cost = layer_cost(
            self.seq_len,
            projected_dim,
            batch=self.batch,
            hidden_size=self.settings.hidden_size,
            intermediate_size=self.settings.intermediate_size,
            itemsize=torch_dtype(self.settings).itemsize,
            train=self.settings.mode == "train",
        )
        least = bound(
            cost,
            flop_per_second=rates["gemm"]["flop_per_second"],
            bytes_per_second=rates["copy"]["bytes_per_second"],
        )
        share = least.seconds * self.layers / seconds
        return {"layer_flop": cost.flop, "layer_bytes": cost.bytes, "bound_by": least.by, "share_of_machine": share}

    def _products_share(self, alone: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The time of the layer's products alone, in training three times, as a share of the fastest run's time."""
        least = alone["products_s"] * (TRAINING if self.settings.mode == "train" else 1)
        return {**alone, "share_of_products": least * self.layers / seconds}

    def _memory(self, encoder: Encoder, timed: dict[str, Any]) -> dict[str, Any] | None:
        """Peak memory of a few layers; None if it will be extrapolated."""
        if encoder.kind in ("full", "roberta") and timed["time"]["median_s"] > _LONGEST_MEMORY_RUN:
            return None
        layers = _MEMORY_LAYERS[self.settings.mode] if self.device.type == "cpu" else paper.LAYERS
        encoder = dataclasses.replace(encoder, layers=layers)
        batch = int(min(max(1, TOKENS // self.seq_len), self._room(encoder)))
        if batch == 0:
            return None
        self._say(f"memory of {encoder.name}")
        memory = measure_memory(encoder, batch, self.settings, self.device)
        return memory | {"extrapolated": False, "largest_batch": largest_batch(memory, self.settings)}

    def _room(self, encoder: Encoder) -> float:
        """Largest batch with which eager attention takes at most 40 % of the free memory; no limit for others."""
        if encoder.kind != "eager":
            return math.inf
        needed = score_bytes(1, self.seq_len, self.settings, layers=encoder.layers, mode=self.settings.mode)
        return _SHARE_OF_FREE_MEMORY * free_bytes(self.device) // needed

    def _say(self, what: str) -> None:
        described = f"n {self.seq_len:,}, {what}"
        if described != self.said:  # updating the bar takes time
            self.said = described
            self.bar.set_description(described)


def compare(results: dict[str, Any]) -> None:
    """Add extrapolations and the Linformers' savings to the results so far, in place."""
    for name in results["settings"]["baselines"]:
        _extrapolate([entry for entry in results["baselines"] if entry["name"] == name], results["settings"])
    for cell in results["cells"]:
        n, k = cell["seq_len"], cell["projected_dim"]
        others = {entry["name"]: entry for entry in results["baselines"] if entry["seq_len"] == n}
        cell["time_saved"] = {name: _time_saved(cell, other) for name, other in others.items()}
        cell["memory_saved"] = {name: _memory_saved(cell, other) for name, other in others.items()}
        forward = results["settings"]["mode"] == "forward"  # the paper has no training figures
        cell["paper_time_saved"] = paper.lookup(paper.TIME_SAVED, n, k) if forward else None
        cell["paper_memory_saved"] = paper.lookup(paper.MEMORY_SAVED, n, k) if forward else None


def _extrapolate(entries: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Extrapolate the entries of one baseline that were not measured from those that were."""
    timed = [(entry["seq_len"], entry) for entry in entries if entry["time"] is not None]
    seconds = [(n, entry["seconds_per_token_layer"] * n) for n, entry in timed]
    measured = [
        (entry["seq_len"], entry["memory"])
        for entry in entries
        if entry["memory"] and not entry["memory"]["extrapolated"] and "bytes_per_sample" in entry["memory"]
    ]
    for entry in entries:
        n = entry["seq_len"]
        if entry["time"] is None and (taken := extrapolate(seconds, n)) is not None:
            entry |= {"extrapolated": True, "seconds_per_token_layer": taken / n}
        lacking = entry["memory"] is None or entry["memory"]["extrapolated"] or "failed" in entry["memory"]
        per_sample = extrapolate([(length, memory["bytes_per_sample"]) for length, memory in measured], n)
        if settings["memory"] and lacking and per_sample is not None:
            nearest = max(measured, key=lambda point: point[0])[1]
            memory = {"bytes_per_sample": per_sample, "extrapolated": True}
            memory |= {name: nearest[name] for name in ("layers", "weight_bytes")}
            batch = largest_batch(memory, EfficiencySettings(**settings))
            entry["memory"] = {**(entry["memory"] or {}), **memory, "largest_batch": batch}  # keeps `failed`


def _time_saved(cell: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """The Transformer's time divided by the Linformer's."""
    if "seconds_per_token_layer" not in other:
        return None
    ratio = other["seconds_per_token_layer"] / cell["seconds_per_token_layer"]
    return {"ratio": ratio, "extrapolated": other["extrapolated"]}


def _memory_saved(cell: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """The Linformer's largest batch, not rounded, divided by the Transformer's."""
    ours, theirs = (entry["memory"] and entry["memory"].get("largest_batch") for entry in (cell, other))
    if not ours or not theirs:
        return None
    return {"ratio": ours / theirs, "extrapolated": other["memory"]["extrapolated"]}
