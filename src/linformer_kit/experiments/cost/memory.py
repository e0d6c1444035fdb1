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
_SHARE_OF_FREE_MEMORY = 0.8  # maximum for a run at the largest batch
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
    return activation_bytes(memory, settings) / per_sample if per_sample else None


def activation_bytes(memory: dict[str, Any], settings: EfficiencySettings) -> float:
    """Bytes beside the weights that a run of the measured layers may take, for `paper.LAYERS` to fit in the budget.

    Args:
        memory: `weight_bytes` of `paper.LAYERS` layers; in training also the number of measured `layers`.
        settings: Mode and budget.
    """
    rest = max(0.0, settings.budget_gib * 2**30 - _resident_bytes(memory, settings))
    return rest * memory["layers"] / paper.LAYERS if settings.mode == "train" else rest


def _resident_bytes(memory: dict[str, Any], settings: EfficiencySettings) -> int:
    """Bytes of the weights of `paper.LAYERS` layers, in training with their gradients."""
    return memory["weight_bytes"] * (2 if settings.mode == "train" else 1)


def confirm_batch(
    encoder: Encoder, memory: dict[str, Any], settings: EfficiencySettings, device: torch.device
) -> dict[str, Any] | None:
    """Run the measured layers once at the largest batch, in a separate process.

    This checks that memory grows linearly with the batch. A model of `paper.LAYERS` layers is not run: that layers use
    the same memory in a forward pass, and equal memory in training, remains an assumption.

    Args:
        encoder: The measured encoder.
        memory: Results of `measure_memory` for it.
        settings: As for `measure_memory`.
        device: Device to run on.

    Returns:
        `batch`, `layers`, `peak_bytes` (None if memory ran out), `allowed_bytes` of `activation_bytes`, and `within`:
        whether the peak was at most that. None if nothing was run: not even one sequence fits in the budget, or
        the weights of `paper.LAYERS` layers, an upper bound, and the expected peak exceed 80 % of the free memory.
    """
    batch = int(largest_batch(memory, settings) or 0)
    if batch == 0:
        return None
    expected = batch * memory["bytes_per_sample"] + _resident_bytes(memory, settings)
    if expected > _SHARE_OF_FREE_MEMORY * free_bytes(device):
        return None
    peak = measure_memory(encoder, batch, settings, device).get("peak_bytes")
    allowed = activation_bytes(memory, settings)
    within = peak is not None and peak <= allowed
    return {"batch": batch, "layers": encoder.layers, "peak_bytes": peak, "allowed_bytes": allowed, "within": within}


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
