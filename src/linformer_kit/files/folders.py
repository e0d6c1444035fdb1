"""Output folders: checks before any work, new ones, locks of those that grow, and checkpoints of training runs."""

from __future__ import annotations

import datetime
import errno
import itertools
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from linformer_cli.errors import InputError, errors_named
from linformer_cli.output_paths import check_run_folder, check_writable
from linformer_kit.files.manifest import damage
from linformer_kit.files.writing import PART, put_in_place, remove_folder, remove_tree

logger = logging.getLogger(__name__)

_NEW_FOLDERS = "runs"  # parent of new run folders, when no output_dir is given
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
TRAINER_STATE = "trainer_state.json"  # the training state; transformers' file name
# What file systems without locks answer, such as some network file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def new_folder(parent: Path, name: str) -> Path:
    """Create a folder with an unused name; concurrent runs get different ones."""
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def check_made_from(path: Path, before: dict[str, Any], now: dict[str, Any], advice: str = "") -> None:
    """Raise an `InputError`, which ends with `advice`, unless the record `before`, of the file `path`, has the settings
    and fingerprints of `now`; its other entries are not compared.
    """
    for name, value in now.items():
        if before.get(name) != value:
            raise InputError(f"resume: expected {name} as in {path}, {before.get(name)!r}, got {value!r}{advice}")


def check_output_dir(output_dir: str | None, *, resume: bool) -> None:
    """Raise an `InputError` for a folder of a run that cannot be created, is not empty, or has no run to resume."""
    if output_dir is not None:
        check_run_folder(output_dir, resume=resume)
    elif resume:
        raise InputError("resume: expected an output_dir to resume in, got none")
    check_writable(Path(output_dir or _NEW_FOLDERS))


def open_output_dir(output_dir: str | None, *, command: str) -> Path:
    """Create the folder if it does not exist, by default `runs/<command>-<date>-<time>`."""
    check_writable(Path(output_dir or _NEW_FOLDERS))
    if output_dir is None:
        return new_folder(Path(_NEW_FOLDERS), f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(lock: Path, name: str) -> Iterator[None]:
    """Hold the lock of an output while it is written. The system releases it when the process ends, however that ends.

    Where the file system has no locks, a warning says so, and the output is written without one.

    Args:
        lock: The lock file, which names this process. It is removed afterwards; a killed process leaves it, unlocked.
        name: Name of the setting of the output, for the message.

    Raises:
        InputError: if another process, or another thread of this one, holds it; the message names the process.
    """
    held, is_locked = FileLock(lock), True
    try:
        with errors_named(lock):
            held.acquire(blocking=False)
    except Timeout:
        raise InputError(f"{name}: expected one run at a time, got another one, {_owner(lock)}") from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: the file system has no locks; start one run at a time there", lock.parent)
        is_locked = False
    try:
        if is_locked:
            with errors_named(lock):
                lock.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        if is_locked:
            with suppress(OSError):  # of a folder that has been removed
                lock.unlink()
            held.release()


def _owner(lock: Path) -> str:
    """The process that holds a lock, as it has written itself."""
    try:
        process, host = lock.read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # it has just begun, or ended
        return f"which holds {lock}"
    return f"process {process} on {host}, which holds {lock}"


def checkpoint_path(folder: Path, updates: int) -> Path:
    """Path of the checkpoint after a number of updates."""
    return folder / f"checkpoint-{updates}"


def find_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, or None, and a description of the damage of each newer one."""
    wrong: list[str] = []
    for path in checkpoints(folder):
        if (what := damage(path)) is None:
            return path, wrong
        wrong.append(what)
    return None, wrong


def recover_checkpoints(folder: Path) -> None:
    """Put complete checkpoints of killed processes in place where none is intact, and remove what else they left."""
    for part in folder.glob(f".*{PART}"):
        path = folder / part.name.removeprefix(".").removesuffix(PART)
        if not CHECKPOINT.fullmatch(path.name):
            continue
        if part.is_symlink() or damage(part) is not None or damage(path) is None:
            remove_tree(part)
        else:
            put_in_place(part, path)


def rotate_checkpoints(folder: Path, limit: int | None, *, keep: int | None) -> None:
    """Remove all but `limit` checkpoints, the oldest first, if the newest one is intact; None: remove none.

    `keep` is the update of a checkpoint to keep regardless of age; it counts towards `limit`.
    """
    paths = checkpoints(folder)
    if limit is None or len(paths) <= limit or damage(paths[0]) is not None:
        return
    best = [path for path in paths[1:] if keep is not None and path == checkpoint_path(folder, keep)]
    others = [path for path in paths[1:] if path not in best]
    for path in others[max(0, limit - 1 - len(best)) :]:
        remove_folder(path)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    named = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
