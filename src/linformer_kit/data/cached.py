"""The cache: Arrow files that are written once, atomically, and memory-mapped by every process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset

from linformer_kit.files.writing import whole_file


def content_hash(parts: Iterable[Any]) -> str:
    """Hexadecimal SHA-256 of values that JSON can hold, in their order."""
    content = hashlib.sha256()
    for part in parts:
        content.update(json.dumps(part).encode() + b"\n")
    return content.hexdigest()


def cache_folder(cache_dir: str | None) -> Path:
    """The folder of the cache: `cache_dir`, or linformer_kit in the user's cache folder."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linformer_kit"


def cached_dataset(path: Path, schema: pyarrow.Schema, batches: Callable[[], Iterable[pyarrow.RecordBatch]]) -> Dataset:
    """Read an Arrow file, or write it first.

    Args:
        path: The file; its name contains a hash of everything that its content depends on.
        schema: Schema of the file.
        batches: Called to make the content if the file is missing or damaged.

    Returns:
        The memory-mapped data set.

    Raises:
        OSError: The file cannot be written; the error has the name of the file or its folder.
    """
    if path.exists():
        try:
            return Dataset.from_file(str(path))
        except (pyarrow.ArrowException, OSError):
            pass  # Damaged: write it again. Do not remove it: another process may just have replaced it.
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as staged, pyarrow.ipc.new_stream(str(staged), schema) as writer:
        for batch in batches():
            writer.write_batch(batch)
    return Dataset.from_file(str(path))
