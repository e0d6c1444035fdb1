"""Files of a pretrained model: checked before any library reads them, and those of sentence-transformers.

No code, no pickle, and no sizes in the configuration beyond the weights': transformers would ask whether to run code,
read a pickle where there are no safetensors, and allocate tensors of any size in a configuration. The files of
sentence-transformers beside an encoder say how its hidden states become the embedding of a text.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
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
_MODULES = "modules.json"
_SETTINGS = ("sentence_bert_config.json", "config_sentence_transformers.json")
_MAX_LENGTH = "max_seq_length"
_PICKLED, _SAFE = "pytorch_model.bin", "model.safetensors"
_SETFIT = ("model_head.pkl", "config_setfit.json")  # the head is a pickle, which is not read
# Names of earlier versions for poolings.
_EARLIER_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
# Files downloaded for a model on the hub; not the encoder itself.
_PATTERNS = [_MODULES, *_SETTINGS, "[0-9]*_*/*"]

logger = logging.getLogger(__name__)

Files = dict[str, bytes]  # contents by path within a folder


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


def sentence_files(source: str, *, longer: int | None = None) -> Files:
    """Read and check the files; empty if the encoder is not a sentence embedder.

    Args:
        source: Folder or hub id of the encoder.
        longer: New longest text in tokens, if it changes.
    """
    folder = Path(source) if is_local_path(source) else _downloaded(source)
    if folder is None or not (folder / _MODULES).is_file():
        return {}
    with input_errors(f"{folder / _MODULES}: expected modules of sentence-transformers, each with its folder"):
        modules = json.loads((folder / _MODULES).read_text(encoding="utf-8"))
        files = {_MODULES: (folder / _MODULES).read_bytes()}
        for module in modules:
            place = module["path"]
            if place in (".", "..") or Path(place).name != place:
                raise ValueError(f"got {place!r}")
            # That of a module without settings is empty, and repositories do not store it.
            if not (folder / place).is_dir() and not str(module.get("type")).endswith("Normalize"):
                raise ValueError(f"got no {place}")
            paths = [path for path in sorted((folder / place).rglob("*")) if path.is_file()] if place else []
            files |= {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    for name in _SETTINGS:
        if (folder / name).is_file():
            content = read_json(folder / name)
            if longer is not None and _MAX_LENGTH in content:
                content[_MAX_LENGTH] = longer
            files[name] = (json.dumps(content, indent=2) + "\n").encode()
    return files


def module_names(source: str) -> list[str]:
    """The class names of the modules in a folder or hub id, in their order; empty if there are none."""
    modules = json.loads(sentence_files(source).get(_MODULES, b"[]"))
    return [module.get("type", module["path"]).rpartition(".")[2] for module in modules]


def pooling_mode(source: str) -> str | None:
    """The pooling in a folder or hub id, such as `mean` or `cls`; None without one, and for several at once."""
    files = sentence_files(source)
    for module in json.loads(files.get(_MODULES, b"[]")):
        if str(module.get("type")).endswith("Pooling"):
            with input_errors(f"model: expected the pooling of sentence-transformers in {source}"):
                content = json.loads(files[f"{module['path']}/config.json"])
                earlier = [name for name, value in content.items() if name.startswith("pooling_mode_") and value]
                modes = content.get("pooling_mode") or [_EARLIER_MODES.get(name, name) for name in earlier]
            modes = [modes] if isinstance(modes, str) else modes
            return modes[0] if len(modes) == 1 else None
    return None


def check_no_pickle(source: str) -> bool:
    """Reject modules whose weights are pickled, and malformed files.

    Args:
        source: Folder or hub id of the encoder.

    Returns:
        Whether there are files of sentence-transformers.
    """
    files = sentence_files(source)
    for name in files:
        safe = f"{name.removesuffix(_PICKLED)}{_SAFE}"
        if name.endswith(f"/{_PICKLED}") and safe not in files:
            raise InputError(f"model: expected {safe} in {source}, got {name}, a pickle, which is not read")
    return bool(files)


def warn_of_left_out(source: str, kept: Files) -> None:
    """Name what a folder or hub id has beside its encoder and a result has not: modules, prompts, SetFit's head.

    `kept` are the files of sentence-transformers in the result, all or none.
    """
    parts = [name for name in _SETFIT if optional_file(source, name)]
    if not kept and (files := sentence_files(source)):
        prompts = json.loads(files.get(_SETTINGS[-1], b"{}")).get("prompts") or {}
        parts = [*module_names(source)[1:], *["prompts"] * any(prompts.values()), *parts]
    if parts:
        logger.warning("%s: not in the result: %s", source, ", ".join(parts))


def write_files(files: Files, folder: Path) -> None:
    """Write files into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _downloaded(source: str) -> Path | None:
    """The folder of a model on the hub; None if it has no such files."""
    try:
        return Path(snapshot_download(source, allow_patterns=_PATTERNS)) if optional_file(source, _MODULES) else None
    except Exception:  # no such model: loading the encoder raises the error
        return None
