"""Memory of an encoder per sample, and the largest batch that fits in a budget."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linformer_kit.errors import out_of_memory
from linformer_kit.experiments import paper
from linformer_kit.experiments.cost.encoders import Encoder, backward, build, random_ids, runner
from linformer_kit.experiments.measure import in_fresh_process, peak_bytes, synchronize
from linformer_kit.settings.bench import EfficiencySettings

TOKENS = 16384  # of the measured batch: large compared with the random few MB of a process
_WARM_UP_TOKENS = 64
_PRECISION = 64  # relative precision of the search for the largest batch: 1/64


def measure_memory(encoder: Encoder, batch: int, settings: EfficiencySettings, device: torch.device) -> dict[str, Any]:
    """Measure the peak memory of one run of an encoder, in a separate process.

    Args:
        encoder: One layer suffices: memory does not grow with layers in a forward pass, and linearly in training.
        batch: Number of sequences.
        settings: Widths, data type, mode, budget.
        device: Device to run on.

    Returns:
        `batch`, `layers`, `peak_bytes` minus the memory in use before the run, `bytes_per_sample`, `weight_bytes` of a
        model of `paper.LAYERS` layers, `found_batch`: on an accelerator, the largest batch that ran within the budget.
        If memory ran out, `failed` instead of `bytes_per_sample`.
    """
    try:
        return in_fresh_process(_memory, encoder, batch, settings, str(device), torch.get_num_threads())
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return {"batch": batch, "layers": encoder.layers, "failed": str(error).partition("\n")[0]}


def _memory(
    encoder: Encoder, batch: int, settings: EfficiencySettings, device_name: str, threads: int
) -> dict[str, Any]:
    """Runs in the fresh process. A short sequence runs first, to initialise libraries and allocate gradients."""
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    model = build(encoder, settings, device, mode=settings.mode)

    def run(sequences: int, length: int = encoder.seq_len) -> None:
        ids = random_ids(sequences, length, encoder.vocab_size, settings.seed, device)
        if settings.mode == "train":
            backward(model, ids)
        else:
            runner(model, ids, "forward")()

    run(1, min(_WARM_UP_TOKENS, encoder.seq_len))
    peak = peak_bytes(lambda: run(batch), device)
    found = None if device.type != "cuda" else _search(run, settings.budget_gib, device)
    return {
        "batch": batch,
        "layers": encoder.layers,
        "peak_bytes": peak,
        "bytes_per_sample": peak / batch,
        "weight_bytes": weight_bytes(model),
        "found_batch": found,
    }


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the parameters that a model would have with `paper.LAYERS` layers."""
    layers = layers_of(model)
    return parameter_bytes(model) + (paper.LAYERS - len(layers)) * parameter_bytes(layers[0])


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The layers of an encoder of any library."""
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of all parameters, each counted once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _search(run: Callable[[int], object], budget_gib: float, device: torch.device) -> int:
    """Largest batch that runs within the budget, by doubling, then bisection; 0 if not even one sequence fits."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget_gib * 2**30 / total), device)
    return largest(lambda size: _fits(run, size, device))


def _fits(run: Callable[[int], object], size: int, device: torch.device) -> bool:
    torch.cuda.empty_cache()
    try:
        run(size)
        synchronize(device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return False
    return True


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, to within one part in `_PRECISION`, if `fits` is monotonic; 0 if 1 does not fit."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // _PRECISION):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(memory: dict[str, Any], settings: EfficiencySettings) -> float | None:
    """Largest batch, not rounded, of a model of `paper.LAYERS` layers within the budget, by its memory per sample.

    In a forward pass the layers use the same memory one after the other. In training each layer keeps its own, so the
    memory of a model of fewer layers is scaled up, and weights count twice for their gradients.

    Args:
        memory: `bytes_per_sample` of a model of `layers` layers, and `weight_bytes`.
        settings: Mode and budget.

    Returns:
        The batch; None if the memory was not measured, or was below the resolution of the measurement.
    """
    per_sample = memory.get("bytes_per_sample")
    if not per_sample:
        return None
    train = settings.mode == "train"
    resident = memory["weight_bytes"] * (2 if train else 1)
    room = max(0.0, settings.budget_gib * 2**30 - resident)
    return room / per_sample * (memory["layers"] / paper.LAYERS if train else 1)


def extrapolate(points: Sequence[tuple[int, float]], seq_len: int) -> float | None:
    """Extrapolate by a·n + b·n² through the two longest measured points, with a, b ≥ 0; None for fewer than two.

    Args:
        points: Pairs of n and the cost of a sequence of n tokens.
        seq_len: n to extrapolate to.
    """
    if len(points) < 2:
        return None
    (n1, taken1), (n2, taken2) = sorted(points)[-2:]
    slope = max(0.0, (taken2 / n2 - taken1 / n1) / (n2 - n1))
    slope = min(slope, taken2 / n2**2)
    return (taken2 / n2 + slope * (seq_len - n2)) * seq_len


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    information = Path("/proc/meminfo")
    found = information.exists() and re.search(r"^MemAvailable:\s+(\d+) kB$", information.read_text(), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # all memory, if the free part is unknown
