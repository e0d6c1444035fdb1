"""Check folders of pretrained models: no code, no pickle, and no sizes in the configuration beyond the weights'.

transformers would ask whether to run code, read a pickle where there are no safetensors, and allocate tensors of any
size in a configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from linformer_kit.errors import InputError, input_errors, machine_failure
from linformer_kit.files.manifest import read_json
from linformer_kit.interop.checkpoints.build import reading

_INDEX = "model.safetensors.index.json"
# Numbers in a configuration up to this need no weights of that size, such as the lengths of models without positions.
_SMALL = 1 << 20
# Parameters that a model may have beyond twice those of its file: a new head, missing weights that are rejected later.
_NEW_PARAMETERS = 1 << 26


class Weights(NamedTuple):
    """Number of tensors and of elements in the weights of a folder."""

    tensors: int
    numbers: int


def check_pretrained_folder(folder: Path, name: str) -> Weights:
    """Reject a folder that is not a complete model in safetensors, before any library reads it.

    Args:
        folder: The folder.
        name: The setting that names it, for errors.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{name}: expected config.json in {folder}, got none")
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{name}: expected a whole model in {folder}, got an adapter (adapter_config.json)")
    config = read_json(path)
    if not isinstance(model_type := config.get("model_type"), str):
        raise InputError(f"{path}: expected a model_type, got {'none' if model_type is None else repr(model_type)}")
    weights = _count(folder, name)
    for key, value in _numbers(config):
        limit = weights.tensors if "layer" in key and re.search("num|^n_|depth", key) else max(weights.numbers, _SMALL)
        if value > limit:
            raise InputError(f"{path}: expected at most {limit:,} as {key} (by the size of its weights), got {value}")
    return weights


def read_config(source: str, what: str) -> PreTrainedConfig:
    """Read the configuration of a folder or hub id without running its code."""
    with reading(what):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        for name in ("_attn_implementation", "_experts_implementation"):
            if isinstance(kernel := getattr(config, name, None), str) and "/" in kernel:
                raise ValueError(f"expected {name[1:]} of transformers, got {kernel!r}, which is code of the hub")
    return config


def check_size(weights: Weights, build: Callable[[], nn.Module], what: str) -> None:
    """Reject a model that is larger than its weights, before memory is allocated for it."""
    with input_errors(what), torch.device("meta"):
        made = sum(parameter.numel() for parameter in build().parameters())
    if made > 2 * weights.numbers + _NEW_PARAMETERS:
        raise InputError(f"{what}: expected the size of its weights, {weights.numbers:,} numbers, got {made:,}")


def _count(folder: Path, name: str) -> Weights:
    index = folder / _INDEX
    if index.is_file():
        try:
            files = {str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{index}: expected files of weights by name, got {type(error).__name__}") from None
        for file in sorted(files):
            if Path(file).name != file or not file.endswith(".safetensors") or not (folder / file).is_file():
                raise InputError(f"{index}: expected safetensors in the same folder, got {file!r}")
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        got = f"{pickled[0]}, a pickle, which may hold code" if pickled else "none"
        raise InputError(f"{name}: expected model.safetensors in {folder}, got {got}")
    tensors = numbers = 0
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (it is no dict)
                    tensors += 1
                    numbers += torch.Size(file.get_slice(key).get_shape()).numel()
        except (OSError, SafetensorError, RuntimeError) as error:
            if machine_failure(error) is not None:
                raise
            raise InputError(f"{path}: expected whole safetensors, got a broken file ({error})") from None
    return Weights(tensors, numbers)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number in nested JSON, with the nearest enclosing key."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, key)
