"""Check the common settings of all speed measurements, and derive values from them."""

from __future__ import annotations

import dataclasses
import sys
from typing import TypeVar

import torch

from linformer_kit.environment import use_bf16
from linformer_kit.experiments.experiment import check_output, require
from linformer_kit.settings import LARGEST_SEED
from linformer_kit.settings.bench import BenchSettings

Settings = TypeVar("Settings", bound=BenchSettings)

_FROM_ZERO = ("seed", "busy_cores")


def check(settings: BenchSettings) -> torch.device:
    """Check the common settings of all measurements before anything is written.

    Returns:
        The device.

    Raises:
        InputError: for a number that is not positive, heads that do not divide the width, an unavailable device, or an
            output_dir that is not empty.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, (int, float)) and not isinstance(number, bool) and field.name not in _FROM_ZERO:
                require(number > 0, field.name, "a positive number", number)
    require(0 <= settings.seed <= LARGEST_SEED, "seed", f"0 to {LARGEST_SEED}", settings.seed)
    divides = settings.hidden_size % settings.num_attention_heads == 0
    require(divides, "num_attention_heads", f"a divisor of {settings.hidden_size}", settings.num_attention_heads)
    check_output(settings.output_dir, overwrite=settings.overwrite)
    return _device(settings.device)


def pairs(lengths: list[int], projected_dims: list[int]) -> dict[int, list[int]]:
    """The values of k below each n, both in ascending order.

    Raises:
        InputError: if either list is empty, or an n has no k below it.
    """
    for name, numbers in (("lengths", lengths), ("projected_dims", projected_dims)):
        require(bool(numbers), name, "at least one", "none")
    least = min(projected_dims)
    require(min(lengths) > least, "lengths", f"more than the smallest of projected_dims, {least}", min(lengths))
    return {n: [k for k in sorted(set(projected_dims)) if k < n] for n in sorted(set(lengths))}


def check_memory(memory: bool, device: torch.device) -> None:
    """Raise `InputError` if memory is to be measured and this system cannot: on a CPU it needs Linux (/proc)."""
    possible = device.type != "cpu" or sys.platform == "linux"
    expected = "false, because memory of a CPU is measured on Linux only"
    require(possible or not memory, "memory", expected, "true")


def default_tokens(tokens: int | None, device: torch.device) -> int:
    """Tokens in a batch: as given, or enough to fill the device."""
    return tokens or (4096 if device.type == "cpu" else 65536)


def with_dtype(settings: Settings, device: torch.device) -> Settings:
    """The settings with dtype `auto` replaced by a format that is fast for all encoders on this device.

    Without instructions for bfloat16, torch's own products in it take several times as long as in float32, and ours do
    not, so that a comparison would say little.
    """
    if settings.dtype != "auto":
        return settings
    is_fast = device.type != "cpu" or use_bf16("auto", on_cpu=True)
    return dataclasses.replace(settings, dtype="bfloat16" if is_fast else "float32")


def torch_dtype(settings: BenchSettings) -> torch.dtype:
    """The torch dtype of the settings, after `with_dtype`."""
    return getattr(torch, settings.dtype)


def _device(name: str) -> torch.device:
    """The device of that name, with its index."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    count = torch.cuda.device_count()
    there = ["cpu", *(f"cuda:{index}" for index in range(count))]
    known = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < count)
    require(known, "device", f"{' or '.join(there)}, which {'is' if not count else 'are'} there", name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
