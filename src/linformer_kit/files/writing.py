"""Files and folders that are whole or not there: written beside their place, flushed to the disk, renamed."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from linformer_kit.errors import errors_named

PART, OLD = ".part", ".old"  # behind the name of a folder, a dot before it: in the making, and about to be replaced
_STAGING = "writing-"
# Seconds after which a file in the making that has not grown belongs to a process that was killed.
_ABANDONED = 24 * 60 * 60


def write_whole(path: Path, text: str) -> None:
    """Write a text at once: a reader, even after a crash, finds all of the new one or all of the old.

    After a failure nothing is left of the new one; an `OSError` names the path.
    """
    part = path.with_name(f".{path.name}{PART}")
    part.unlink(missing_ok=True)  # a link there would be written through
    try:
        with errors_named(path):
            part.write_text(text, encoding="utf-8")
            flush(part)
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk and not only in memory."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Somewhere to write what is to be a file at once, also if other processes write the same.

    After a failure nothing is left of it; an `OSError` names the path. What killed processes left half-written beside
    it is removed once it is a day old.
    """
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_STAGING) as staging:
        staged = Path(staging) / path.name
        with errors_named(path):
            yield staged
            flush(staged)
        os.replace(staged, path)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Somewhere to write what is to stand in `folder`, new or empty, in the end; after a failure nothing is left of it.

    A folder that is there already stays the same one, since somebody may stand in it: what was written moves in.
    """
    folder = folder.resolve()
    there = folder.exists()
    part = (folder if there else folder.parent) / f".{folder.name}.{os.getpid()}"
    part.mkdir(parents=True)
    try:
        yield part
        if there:
            for path in part.iterdir():
                os.replace(path, folder / path.name)
            part.rmdir()
        else:
            os.replace(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def remove_tree(path: Path) -> None:
    """Remove what is there, if anything; of a link the link, and nothing of what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """While results are written, Ctrl-C does nothing: a second one would lose what the first has kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left half-written."""
    for staging in folder.glob(f"{_STAGING}*"):
        try:
            written = max(path.stat().st_mtime for path in (staging, *staging.iterdir()))
        except OSError:  # its process has just finished
            continue
        if time.time() - written > _ABANDONED:
            shutil.rmtree(staging, ignore_errors=True)
