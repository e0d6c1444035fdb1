"""Check folders of pretrained models: no code, no pickle, and no sizes in the configuration beyond the weights'.

transformers would ask whether to run code, read a pickle where there are no safetensors, and allocate tensors of any
size in a configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import cached_file

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import is_local_path
from linformer_kit.files.manifest import read_json
from linformer_kit.internals import implementations

_INDEX = "model.safetensors.index.json"
# Numbers in a configuration up to this need no weights of that size, such as the lengths of models without positions.
_SMALL = 1 << 20
# Parameters that a model may have beyond twice those of its file: a new head, missing weights that are rejected later.
_NEW_PARAMETERS = 1 << 26


def _check_folder(folder: Path) -> None:
    """Reject a folder that is not a complete model in safetensors, before any library reads it."""
    path = folder / "config.json"
    if not folder.is_dir():
        problem = "which is a file" if folder.exists() else "which does not exist"
        raise InputError(f"model: expected a folder, got {folder}, {problem}")
    if not path.is_file():
        raise InputError(f"model: expected config.json in {folder}, got none")
    if (folder / "adapter_config.json").exists():
        raise InputError(f"model: expected a whole model in {folder}, got an adapter (adapter_config.json)")
    if (folder / "model.onnx").exists() and not any(folder.glob("*.safetensors")):
        raise InputError(f"model: expected a model for PyTorch in {folder}, got an exported one (model.onnx)")
    config = read_json(path)
    if not isinstance(model_type := config.get("model_type"), str):
        raise InputError(f"{path}: expected a model_type, got {'none' if model_type is None else repr(model_type)}")
    tensors, numbers = _count(folder)
    for key, value in _numbers(config):
        limit = tensors if "layer" in key and re.search("num|^n_|depth", key) else max(numbers, _SMALL)
        if value > limit:
            raise InputError(f"{path}: expected at most {limit:,} as {key} (by the size of its weights), got {value}")


def read_config(source: str, what: str) -> PreTrainedConfig:
    """Read the configuration of a folder, once it is checked, or of a hub id, without running its code."""
    if is_local_path(source):
        _check_folder(Path(source))
    else:
        what += ", which is no folder here; from the hub"
    with input_errors(what):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        for name, kernel in implementations(config).items():
            if isinstance(kernel, str) and "/" in kernel:
                raise ValueError(f"expected {name} of transformers, got {kernel!r}, which is code of the hub")
    return config


def optional_file(source: str, name: str) -> str | None:
    """Path of a file of a folder or hub id, downloaded; None if there is none, or no connection."""
    quiet: Any = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(source, name, **quiet)


def check_size(folder: Path, build: Callable[[], nn.Module], what: str) -> None:
    """Reject a model that is larger than its weights in a folder, before memory is allocated for it."""
    _, numbers = _count(folder)
    with input_errors(what), torch.device("meta"):
        size = sum(parameter.numel() for parameter in build().parameters())
    if size > 2 * numbers + _NEW_PARAMETERS:
        raise InputError(f"{what}: expected the size of its weights, {numbers:,} numbers, got {size:,}")


def _count(folder: Path) -> tuple[int, int]:
    """The number of tensors and of their elements in the weights of a folder."""
    paths = sorted(folder.glob("*.safetensors"))
    if (index := folder / _INDEX).is_file():
        with input_errors(f"{index}: expected files of weights by name"):
            paths = [folder / file for file in sorted({*read_json(index)["weight_map"].values()})]
    for path in paths or sorted(folder.glob("*.bin")):
        if path.suffix != ".safetensors" or path.parent != folder:
            raise InputError(f"model: expected safetensors in {folder}, got {path.name}, a pickle, which may hold code")
    if not paths:
        raise InputError(f"model: expected model.safetensors in {folder}, got none")
    tensors = numbers = 0
    for path in paths:
        what = f"{path}: expected whole safetensors, got a broken file"
        with input_errors(what), safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (it is no dict)
                tensors += 1
                numbers += torch.Size(file.get_slice(key).get_shape()).numel()
    return tensors, numbers


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number in nested JSON, with the nearest enclosing key."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, (list, dict)):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            yield from _numbers(item, key)
