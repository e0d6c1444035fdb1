"""Table 1 of the paper in practice: time and memory of one layer of each kind of encoder against n.

`linformer bench systems` times them alternately at each length and fits the exponent. Results list systems that are
not installed, fail or take too long, with the reason.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from linformer_kit.errors import InputError
from linformer_kit.experiments.cost.registry import SYSTEMS
from linformer_kit.experiments.experiment import Experiment, require
from linformer_kit.experiments.measure import in_fresh_process, interleaved, peak_bytes, summary, synchronize
from linformer_kit.experiments.prepare import check, check_memory, default_tokens, torch_dtype, with_dtype
from linformer_kit.report.systems import write_systems_report
from linformer_kit.settings import portable
from linformer_kit.settings.bench import SystemsSettings


def main(settings: SystemsSettings) -> None:
    """Measure, write and print."""
    bench_systems(checked(settings)).show()


def checked(settings: SystemsSettings) -> SystemsSettings:
    """Settings with dependent defaults filled in, and lists of numbers sorted.

    Raises:
        InputError: for unknown systems, and as `prepare.check`.
    """
    device = check(settings)
    settings = with_dtype(settings, device)
    systems = list(dict.fromkeys(settings.systems or SYSTEMS))
    for name in systems:
        require(name in SYSTEMS, "systems", f"some of {', '.join(SYSTEMS)}", name)
    for name in ("lengths", "projected_dims"):
        require(bool(getattr(settings, name)), name, "at least one", "none")
    check_memory(settings.memory, device)
    return dataclasses.replace(
        settings,
        systems=systems,
        lengths=sorted(set(settings.lengths)),
        projected_dims=sorted(set(settings.projected_dims)),
        tokens=default_tokens(settings.tokens, device),
    )


def bench_systems(settings: SystemsSettings) -> Experiment:
    """Time every system at every length, and write `systems.json`, `systems.md` and `systems.png` after each length.

    Args:
        settings: Result of `checked`.

    Returns:
        The experiment with the results.

    Raises:
        KeyboardInterrupt: when interrupted, after the results so far are written.
    """
    assert settings.systems
    entries = [entry for name in settings.systems for entry in _entries(name, settings)]
    experiment = Experiment(
        "bench systems",
        settings.output_dir,
        device=torch.device(settings.device),
        settings=portable(settings),
        write=write_systems_report,
        fields={"systems": entries, "complete": False},
    )
    with experiment, tqdm(total=len(settings.lengths) * len(entries) * (1 + settings.repetitions)) as bar:
        try:
            for n in settings.lengths:
                bar.set_description(f"n {n:,}")
                _measure_length(settings, n, entries, bar)
                experiment.results["complete"] = n == settings.lengths[-1]
                experiment.save()
        except KeyboardInterrupt:
            experiment.save()
            raise
    return experiment


def _entries(name: str, settings: SystemsSettings) -> list[dict[str, Any]]:
    """The entries of a system in the results, one for each k if it has one."""
    system = SYSTEMS[name]
    about = {field: getattr(system, field) for field in ("label", "complexity", "claim", "note")}
    return [
        {
            "name": name,
            "k": k,
            **about,
            "package": _version(system.package),
            "runs": [],
            "skipped": [],
            "exponent": None,
        }
        for k in (settings.projected_dims if system.projected else [None])
    ]


def _version(package: str | None) -> str | None:
    try:
        return f"{package} {metadata.version(package)}" if package else None
    except metadata.PackageNotFoundError:
        return None


def _measure_length(settings: SystemsSettings, n: int, entries: list[dict[str, Any]], bar: tqdm) -> None:
    """Add a run at this length, or the reason for its absence, to each entry."""
    device = torch.device(settings.device)
    hidden = _hidden(settings, n)
    batch = len(hidden)
    torch.compiler.reset()  # compilations for other lengths count towards a limit
    cases: dict[str, Callable[[], object]] = {}
    first_runs: dict[str, float] = {}
    for entry in entries:
        try:
            cases[_key(entry)], first_runs[_key(entry)] = _ready(settings, entry, hidden)
            bar.update()
        except Exception as error:  # any error of a library is its result
            entry["skipped"].append({"n": n, "reason": _reason(error, entry["name"])})
            bar.update(1 + settings.repetitions)
    timings = interleaved(
        cases,
        device=device,
        repetitions=settings.repetitions,
        warmup=0,  # each layer has already run once
        seconds=settings.seconds,
        done=lambda _: bar.update(),
    )
    cases.clear()
    for entry in entries:
        if taken := timings.get(_key(entry)):
            run = {"n": n, "batch": batch, **summary(taken), "first_run_s": first_runs[_key(entry)]}
            run["per_token_s"] = run["median_s"] / (batch * n)
            if settings.memory:
                bar.set_description(f"n {n:,}, memory of {_key(entry)}")
                arguments = (entry["name"], n, entry["k"], torch.get_num_threads())
                run["peak_bytes"] = in_fresh_process(_peak_bytes, settings, *arguments)
            entry["runs"].append(run)
            entry["exponent"] = fitted_exponent(entry["runs"])


def _hidden(settings: SystemsSettings, n: int) -> Float[Tensor, "batch seq_len embed"]:
    """Random input of a layer, about `tokens` tokens; in training with a gradient, as between two layers."""
    device = torch.device(settings.device)
    batch = max(1, default_tokens(settings.tokens, device) // n)
    torch.manual_seed(settings.seed)
    hidden = torch.randn(batch, n, settings.hidden_size).to(device, torch_dtype(settings))
    return hidden.requires_grad_(settings.mode == "train")


def _run(layer: nn.Module, hidden: Float[Tensor, "batch seq_len embed"]) -> Callable[[], Tensor]:
    """A function for one run: a forward pass, or, if the input has a gradient, forward and backward.

    It returns the output of the layer; gradients are dropped.
    """
    if not hidden.requires_grad:
        return torch.inference_mode()(lambda: layer(hidden))

    def step() -> Tensor:
        output = layer(hidden)
        output.float().square().mean().backward()
        layer.zero_grad(set_to_none=True)
        hidden.grad = None
        return output.detach()

    return step


def _peak_bytes(settings: SystemsSettings, name: str, n: int, k: int | None, threads: int) -> int:
    """Peak memory of one run beside weights and input; in a fresh process. A first run initialises libraries."""
    torch.set_num_threads(threads)
    hidden = _hidden(settings, n)
    run = _run(_layer(settings, name, hidden, k), hidden)
    run()
    return peak_bytes(run, hidden.device)


def _layer(
    settings: SystemsSettings, name: str, hidden: Float[Tensor, "batch seq_len embed"], k: int | None
) -> nn.Module:
    """The layer for this input, in evaluation mode unless it is to be trained."""
    torch.manual_seed(settings.seed)
    layer = SYSTEMS[name].build(settings, hidden.shape[1], k).to(hidden.device, hidden.dtype)
    return layer.train(settings.mode == "train")


def _key(entry: dict[str, Any]) -> str:
    return f"{entry['name']} {entry['k']}"


def _ready(
    settings: SystemsSettings, entry: dict[str, Any], hidden: Float[Tensor, "batch seq_len embed"]
) -> tuple[Callable[[], Tensor], float]:
    """The function that runs a layer, after a first run, which includes compilation, and the seconds of that run.

    Raises:
        InputError: if the layer does not support this length, took too long at a shorter one or has non-finite outputs.
    """
    n, k, runs = hidden.shape[1], entry["k"], entry["runs"]
    if k is not None and k >= n:
        raise InputError(f"k {k} is not below n")
    if runs and runs[-1]["median_s"] > settings.max_seconds:
        raise InputError(
            f"took {runs[-1]['median_s']:.3g} s at n {runs[-1]['n']:,}, more than {settings.max_seconds:g} s"
        )
    run = _run(_layer(settings, entry["name"], hidden, k), hidden)
    synchronize(hidden.device)
    start = time.perf_counter()
    output = run()
    synchronize(hidden.device)
    seconds = time.perf_counter() - start
    if output.shape != hidden.shape or not output.isfinite().all():
        raise InputError(f"expected finite {list(hidden.shape)}, got {list(output.shape)} with NaN or infinity")
    return run, seconds


def _reason(error: Exception, name: str) -> str:
    """The reason for a missing run, in one line."""
    package = SYSTEMS[name].package
    if isinstance(error, ModuleNotFoundError) and package:
        return f'{error.name} is not installed: pip install "linformer-kit[peers]"'
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, InputError):
        return lines[0]
    return ": ".join([f"failed with {type(error).__name__}", *lines[:1]])


def fitted_exponent(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """p in time ∝ nᵖ for one sequence: least squares of log time on log n over the longer half of the lengths.

    Args:
        runs: Entries with `n` and `per_token_s`, in ascending order of n.

    Returns:
        `value`, and the `lengths` of the fit, at least two; None for fewer.
    """
    upper = runs[-max(2, math.ceil(len(runs) / 2)) :]
    if len(upper) < 2:
        return None
    seconds = [run["per_token_s"] * run["n"] for run in upper]
    fit = statistics.linear_regression([math.log(run["n"]) for run in upper], list(map(math.log, seconds)))
    return {"value": fit.slope, "lengths": [run["n"] for run in upper]}
