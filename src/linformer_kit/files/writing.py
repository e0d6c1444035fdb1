"""Atomic writes: files and folders are written under a temporary name, flushed to disk and renamed."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from linformer_cli.errors import InputError, errors_named

MANIFEST = "manifest.json"
PART = ".part"  # suffix of hidden temporary names
# Seconds without a write after which a temporary file is taken for that of a killed process.
_ABANDONED = 24 * 60 * 60


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, whose file then replaces `path` atomically; safe with concurrent processes and threads.

    After a crash `path` has either the new content or the old one. After an error the temporary file is removed; an
    `OSError` names the path. Those of killed processes in the same folder are removed once they are a day old.
    """
    for abandoned in path.parent.glob(f".*.*{PART}"):
        with suppress(OSError):  # its process has just finished
            if abandoned.is_file() and time.time() - abandoned.stat().st_mtime > _ABANDONED:
                abandoned.unlink()
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with errors_named(path):
            yield part
            flush(part)
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file as `whole_file` does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_folder(folder: Path, *, beside: bool = False, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, whose content then becomes that of `folder`; it is removed after an error.

    A new folder appears by renaming. An existing one is kept, since it may be the working directory of a process: files
    are moved into it, the manifest last.

    Args:
        folder: A new or empty folder.
        beside: Whether the folder may have other files, of which those with new names stay. Only one process may write
            then, and an error while files are moved leaves the folder without a manifest.
        replace: Whether an existing folder, or link, is removed and the temporary one renamed. Only one process may
            write then. An error meanwhile leaves the temporary one, which is complete.

    Raises:
        InputError: if another process or thread writes, or has written, into `folder`. What that writes is kept.
    """
    folder = folder if replace else folder.resolve()
    taken = InputError(f"{folder}: expected a new or empty folder, got one that another process has written to")
    exists = folder.exists() and not replace
    # Within an existing folder the same name for all writers, so that only one can create it.
    name = folder.name if exists or replace else f"{folder.name}.{secrets.token_hex(8)}"
    part = (folder if exists else folder.parent) / f".{name}{PART}"
    if beside or replace:
        remove_tree(part)  # of a killed process
    try:
        part.mkdir(parents=True)
    except FileExistsError:
        raise taken from None
    try:
        if exists and not beside and len(list(folder.iterdir())) > 1:
            raise taken
        # Checkpoints, which have other files beside them or before them, are named by `write_by_one`.
        with nullcontext() if beside or replace else errors_named(folder):
            yield part
        if exists:
            _move_into(part, folder)
        elif not replace:
            try:
                os.replace(part, folder)
            except OSError:
                if folder.exists():
                    raise taken from None
                raise
            flush(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if replace:  # the temporary folder is the only copy from here on
        put_in_place(part, folder)


def put_in_place(part: Path, folder: Path) -> None:
    """Replace a folder, if it exists, by a complete temporary one."""
    remove_folder(folder)
    os.replace(part, folder)
    flush(folder.parent)


def _move_into(part: Path, folder: Path) -> None:
    """Move files into an existing folder, the manifest last."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in sorted(part.iterdir(), key=lambda path: path.name == MANIFEST):
        if path.is_dir():
            remove_tree(folder / path.name)
        os.replace(path, folder / path.name)
    part.rmdir()
    flush(folder)


def remove_tree(path: Path) -> None:
    """Remove a file or folder if it exists; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder, its manifest first, so that a partly removed one is never valid; of a link only the link."""
    if not folder.is_symlink():
        (folder / MANIFEST).unlink(missing_ok=True)
    remove_tree(folder)
