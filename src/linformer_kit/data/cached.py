"""Arrow files that are made once, are whole or not there, and are memory-mapped by every process."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
from datasets import Dataset

_STAGING = "writing-"
# Seconds after which a file in the making that has not grown belongs to a process that was killed.
_ABANDONED = 24 * 60 * 60


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder for whatever can be made again: `cache_dir`, or the user's own cache."""
    if cache_dir:
        return Path(cache_dir).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "linformer_kit"


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
        OSError: The file cannot be written; it has the file's name.
    """
    if path.exists():
        try:
            found = Dataset.from_file(str(path))
        except (pyarrow.ArrowException, OSError):
            found = None
        if found is not None and rows in (None, len(found)):
            return found
        path.unlink()  # cut off or damaged: make it again
    _write(batches(), schema, path)
    return Dataset.from_file(str(path))


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Around writing to a path: an `OSError` without a file name, as a full disk gives, gets this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def _write(batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema, path: Path) -> None:
    """Write an Arrow file that is either whole or not there, also if another process writes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
