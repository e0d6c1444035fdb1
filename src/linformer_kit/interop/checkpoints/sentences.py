"""The files of sentence-transformers beside an encoder: how its hidden states become the embedding of a text."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from huggingface_hub import snapshot_download

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import is_local_path
from linformer_kit.files.manifest import read_json
from linformer_kit.interop.checkpoints.pretrained import optional_file

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
