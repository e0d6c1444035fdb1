"""The files of sentence-transformers beside an encoder: how its hidden states become the embedding of a text."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError

from linformer_kit.errors import InputError
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import SENTENCE_FILES
from linformer_kit.settings import is_local_path

_MODULES, *_SETTINGS = SENTENCE_FILES
_MAX_LENGTH = "max_seq_length"
_EMPTY = "Normalize"
_PICKLED, _SAFE = "pytorch_model.bin", "model.safetensors"
# Files downloaded for a model on the hub; not the encoder itself.
_PATTERNS = [_MODULES, *_SETTINGS, "[0-9]*_*/*"]

Files = dict[str, bytes]  # contents by path within a folder

logger = logging.getLogger(__name__)


def sentence_files(source: str, *, longer: int | None = None) -> Files:
    """Read and check the files; empty if the encoder is not a sentence embedder.

    Warns of an encoder of the hub whose files can neither be downloaded nor are cached.

    Args:
        source: Folder or hub id of the encoder.
        longer: New longest text in tokens, if it changes.
    """
    folder = _folder(source)
    if folder is None or not (folder / _MODULES).is_file():
        if not is_local_path(source) and _is_unknown(source):
            logger.warning("%s: no connection, and %s is not cached: mean pooling is assumed", source, _MODULES)
        return {}
    try:
        modules = json.loads((folder / _MODULES).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / _MODULES}: expected JSON of sentence-transformers, got {error}") from None
    modules = modules if isinstance(modules, list) else [modules]
    paths = [module.get("path") if isinstance(module, dict) else None for module in modules]
    for path in paths:
        if not isinstance(path, str) or path in (".", "..") or Path(path).name != path:
            raise InputError(
                f"{folder / _MODULES}: expected modules, each with the path of its folder, got {modules!r}"
            )
    files = {_MODULES: (folder / _MODULES).read_bytes()}
    for name in _SETTINGS:
        if (folder / name).is_file():
            content = read_json(folder / name)
            if longer is not None and _MAX_LENGTH in content:
                content[_MAX_LENGTH] = longer
            files[name] = (json.dumps(content, indent=2) + "\n").encode()
    for module, place in zip(modules, paths, strict=True):
        if not place:
            continue
        # A module without weights and settings has an empty folder, which git repositories do not store.
        if not (folder / place).is_dir() and not str(module.get("type")).endswith(_EMPTY):
            raise InputError(f"{folder / _MODULES}: expected a folder {place} beside it, got none")
        inside = (path for path in sorted((folder / place).rglob("*")) if path.is_file())
        files |= {str(path.relative_to(folder)): path.read_bytes() for path in inside}
    return files


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


def write_files(files: Files, folder: Path) -> None:
    """Write files into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _folder(source: str) -> Path | None:
    if is_local_path(source):
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=_PATTERNS))
    except Exception:  # no network or no such model: loading the encoder raises the error
        return None


def _is_unknown(source: str) -> bool:
    """Whether a model on the hub may have files that could not be read."""
    if try_to_load_from_cache(source, _MODULES) is _CACHED_NO_EXIST:
        return False
    try:
        hf_hub_download(source, _MODULES)
    except Exception as error:  # the file or the model does not exist, or there is no connection
        return isinstance(error, LocalEntryNotFoundError)
    return True
