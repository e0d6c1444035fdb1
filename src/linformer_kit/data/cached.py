"""Arrow files that are made once, are whole or not there, and are memory-mapped by every process."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow
from datasets import Dataset

from linformer_kit.errors import InputError, error_text, errors_named, machine_failure

_STAGING = "writing-"
# Seconds after which a file in the making that has not grown belongs to a process that was killed.
_ABANDONED = 24 * 60 * 60


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder for whatever can be made again: `cache_dir`, or the user's own cache."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "linformer_kit"


def make_cache_folder(folder: Path) -> None:
    """Make a folder of the cache, whose user can give another one if this may not be written to.

    Raises:
        InputError: if it may not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
    except OSError as error:
        if machine_failure(error) is not None:
            raise
        reason = error.strerror or error_text(error)
    if reason:
        raise InputError(
            f"cache_dir: expected a folder to write to, got {folder} ({reason}); give another one with --cache_dir"
        )


def cached_dataset(
    path: Path, schema: pyarrow.Schema, batches: Callable[[], Iterable[pyarrow.RecordBatch]], *, rows: int | None = None
) -> Dataset:
    """Read an Arrow file, or make it.

    Args:
        path: The file, with a hash in its name of everything that its content depends on.
        schema: Of the file.
        batches: Called to make the content where the file is missing or damaged.
        rows: Number of rows of a whole file; None: unknown.

    Returns:
        The memory-mapped data set.

    Raises:
        InputError: The folder may not be written to.
        OSError: The file cannot be written; it has the file's name.
    """
    if path.exists():
        try:
            found = Dataset.from_file(str(path))
        except (pyarrow.ArrowException, OSError):
            found = None
        if found is not None and rows in (None, len(found)):
            return found
        # Cut off or damaged: made again, in its place. Not removed: another process may just have replaced it.
    make_cache_folder(path.parent)
    _write(batches(), schema, path)
    return Dataset.from_file(str(path))


def _write(batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, path: Path) -> None:
    """Write an Arrow file that is either whole or not there, also if another process writes the same."""
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_STAGING) as staging:
        staged = Path(staging) / path.name
        with errors_named(path), staged.open("wb") as file:
            with pyarrow.ipc.new_stream(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left half-written."""
    for staging in folder.glob(f"{_STAGING}*"):
        try:
            written = max(path.stat().st_mtime for path in (staging, *staging.iterdir()))
        except OSError:  # its process has just finished
            continue
        if time.time() - written > _ABANDONED:
            shutil.rmtree(staging, ignore_errors=True)
