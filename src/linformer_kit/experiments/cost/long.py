"""One pass of a Linformer encoder over a very long sequence: time per token compared with a short one, and memory.

`linformer bench long --n 1048576`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from linformer_kit.experiments.cost.encoders import Encoder, build, random_ids, runner
from linformer_kit.experiments.cost.memory import layers_of, parameter_bytes
from linformer_kit.experiments.experiment import Experiment, require
from linformer_kit.experiments.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.experiments.prepare import check, torch_dtype, with_dtype
from linformer_kit.models.encoder import LinformerLayer
from linformer_kit.report.long import write_long_report
from linformer_kit.settings import portable
from linformer_kit.settings.bench import LongSettings

_SECONDS = 60.0  # for all runs over the short sequence


def main(settings: LongSettings) -> None:
    """Measure in a fresh process, write and print."""
    device = check(settings)
    settings = with_dtype(settings, device)
    for name in ("n", "reference_length"):
        length, k = getattr(settings, name), settings.projected_dim
        require(length > k, name, f"more than projected_dim, {k}", length)
    with Experiment(
        "bench long", settings.output_dir, device=device, settings=portable(settings), write=write_long_report
    ) as experiment:
        experiment.results |= in_fresh_process(measure_long, settings, str(device), torch.get_num_threads())
        experiment.save()
    experiment.show()


def measure_long(settings: LongSettings, device_name: str, threads: int) -> dict[str, Any]:
    """Time per token at `settings.reference_length`, then time and memory of one pass over `settings.n` tokens.

    Each model is built before it is measured; the short one is freed before the memory of the long one is measured.

    Args:
        settings: The settings.
        device_name: Device to measure.
        threads: Number of CPU threads.

    Returns:
        The measurements, as in `long.json`.
    """
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    reference = summary(_time_reference(settings, device))
    model = build(_encoder(settings, settings.n), settings, device)
    seconds, peak = _one_pass(model, settings, device)
    hidden_bytes = settings.n * settings.hidden_size * torch_dtype(settings).itemsize
    per_token = {"reference": reference["median_s"] / settings.reference_length, "long": seconds / settings.n}
    return {
        "reference": {**reference, "seconds_per_token": per_token["reference"]},
        "long": {"seconds": seconds, "seconds_per_token": per_token["long"]},
        "ratio": per_token["long"] / per_token["reference"],
        "weight_bytes": parameter_bytes(model),
        "peak_bytes": peak,
        "hidden_bytes": hidden_bytes,
        "peak_in_hidden_states": peak / hidden_bytes,
    }


def _encoder(settings: LongSettings, seq_len: int) -> Encoder:
    return Encoder(
        kind="linformer",
        seq_len=seq_len,
        layers=settings.layers,
        projected_dim=settings.projected_dim,
        vocab_size=settings.vocab_size,
    )


def _time_reference(settings: LongSettings, device: torch.device) -> list[float]:
    """Seconds of each run of a model made for the short sequence."""
    encoder = _encoder(settings, settings.reference_length)
    model = build(encoder, settings, device)
    ids = random_ids(1, encoder.seq_len, encoder.vocab_size, settings.seed, device)
    with tqdm(total=settings.repetitions, unit="run", dynamic_ncols=True, desc=f"n {encoder.seq_len:,}") as bar:
        timings = interleaved(
            {"reference": runner(model, ids, "forward")},
            device=device,
            repetitions=settings.repetitions,
            seconds=_SECONDS,
            done=lambda _: bar.update(),
        )
    return timings["reference"]


def _one_pass(model: nn.Module, settings: LongSettings, device: torch.device) -> tuple[float, int]:
    """Seconds of the pass, and its peak memory minus the memory in use before; a bar counts the layers."""
    ids = random_ids(1, settings.n, settings.vocab_size, settings.seed, device)
    run = runner(model, ids, "forward")
    seconds: list[float] = []

    def once() -> None:
        seconds.extend(interleaved({"long": run}, device=device, repetitions=1, warmup=0)["long"])

    with tqdm(total=settings.layers, unit="layer", dynamic_ncols=True, desc=f"n {settings.n:,}") as bar:
        for layer in layers_of(model):
            layer.__class__, layer.bar = _Counted, bar
        peak = peak_bytes(once, device)
    return seconds[0], peak


class _Counted(LinformerLayer):
    """A layer that advances a progress bar. A hook instead would disable the model's in-place operations."""

    bar: tqdm

    def forward(self, *inputs: Any, **named: Any) -> Any:
        output = super().forward(*inputs, **named)
        self.bar.update()
        return output
