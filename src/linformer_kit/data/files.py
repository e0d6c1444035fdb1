"""Files of texts and fingerprints of their contents; and the cache of what is made from them.

The cache has Arrow files that are written once, atomically, and memory-mapped by every process.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path

import pyarrow
from datasets import Dataset
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import names_only
from linformer_kit.data.read import TABLE_SUFFIXES, TEXT_SUFFIXES, is_saved_dataset
from linformer_kit.files.folders import check_writable
from linformer_kit.files.manifest import fingerprint
from linformer_kit.files.writing import whole_file

logger = logging.getLogger(__name__)

SUFFIXES = TEXT_SUFFIXES + TABLE_SUFFIXES

# Third-party packages, and tests, which are most of the files and unlike the other source.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Part of every fingerprint: increase it when a rule in read.py gives other documents for the same file.
_RULES_VERSION = 1


@dataclass(frozen=True)
class TextFiles:
    """Files and how to read them."""

    name: str  # for messages
    paths: tuple[Path, ...]  # in the order given, each once
    document: str  # what a document of a text file is: `file` or `line`
    column: str  # text column of tables

    def fingerprint(self) -> str:
        """Hash of contents and order of the files, and how they are read; a copy of the same text has the same hash."""
        paths = tqdm(self.paths, desc="Hashing text", unit=" files", delay=2)
        contents = ((path.suffix.lower(), path) for path in paths)
        return fingerprint(_RULES_VERSION, self.document, self.column, contents)


def find_files(
    patterns: list[str], *, field: str, suffixes: tuple[str, ...] = SUFFIXES, repeated: bool = False
) -> tuple[Path, ...]:
    """Find the files that patterns match, in the order of the patterns; those of one folder or glob are sorted.

    What a pipe holds is copied into a file without suffix.

    Args:
        patterns: Files, folders (searched recursively) and globs (`**` is any depth). Hidden files are only used if
            they are named explicitly.
        field: The setting of the patterns, for messages.
        suffixes: Those of the files of folders and globs, which others must have as well.
        repeated: Whether a file that several patterns match counts as often, as one with texts to embed does. Else it
            counts once, at its first place, and a message says so: texts to train on twice would weigh twice.

    Raises:
        InputError: A pattern matches no file, or names a file that is empty or has another suffix.
    """
    matches = [path for pattern in patterns for path in _match(pattern, field, suffixes)]
    once: dict[Path, Path] = {}
    for path in matches:
        once.setdefault(path.resolve(), path)
    if repeated or len(once) == len(matches):
        return tuple(matches)
    logger.info("%s: %d files are named more than once, and read once", field, len(matches) - len(once))
    return tuple(once.values())


def _match(pattern: str, field: str, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of one pattern; of a folder or glob sorted, each path once."""
    if not pattern:
        raise InputError(f"{field}: expected a file, a folder or a glob, got an empty name")
    path = Path(os.path.expanduser(pattern))
    if path.is_dir() or (not path.exists() and any(character in pattern for character in "*?[")):
        names = set(glob(f"{escape(str(path))}/**/*" if path.is_dir() else str(path), recursive=True))
        texts = [path for path in sorted(map(Path, names)) if path.suffix.lower() in suffixes and path.is_file()]
        if any(map(is_saved_dataset, {text.parent for text in texts})):
            expected = "files of texts, or the folder as dataset_name"
            raise InputError(f"{field}: expected {expected}, got {pattern}, a data set of `save_to_disk`")
        if not texts:
            raise InputError(f"{field}: {pattern} matches no file; expected files that end in {' '.join(suffixes)}")
        return texts
    file = _as_file(path, field)
    if not file.is_file():
        raise InputError(f"{field}: no such file or folder: {path}")
    if file.suffix.lower() not in suffixes and (file.suffix or file == path):
        raise InputError(f"{field}: {path} has suffix {path.suffix!r}; expected one of {' '.join(suffixes)}")
    if file.stat().st_size == 0:
        raise InputError(f"{field}: {path} is empty; expected text")
    return [file]


def _as_file(path: Path, field: str) -> Path:
    """A pipe, or standard input, as a file that can be read more than once; any other path unchanged.

    What a pipe holds is copied into a temporary file, which is removed at exit.
    """
    linked = path.is_file() and path.is_symlink() and not path.suffix  # as standard input is in `< texts.csv`
    if linked and (target := path.resolve()).suffix.lower() in SUFFIXES:
        return target
    if not linked and not path.is_fifo():
        return path
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(f"{field}: expected a file, which all processes can read, got {path}")
    folder = tempfile.TemporaryDirectory(prefix="linformer-")
    atexit.register(folder.cleanup)
    copy = Path(folder.name) / (path.name if path.suffix.lower() in SUFFIXES else "pipe")
    with path.open("rb") as source, copy.open("wb") as target_file:
        shutil.copyfileobj(source, target_file)
    return copy


def text_files(patterns: list[str] | None, *, field: str, document: str = "file", column: str = "text") -> TextFiles:
    """The files that patterns match, as `find_files`; None: the source of the Python standard library."""
    if patterns:
        return TextFiles(" ".join(names_only(patterns)), find_files(patterns, field=field), document, column)
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if _NOT_LIBRARY.isdisjoint(path.relative_to(root).parts))
    name = f"standard library of Python {platform.python_version()}"
    return TextFiles(name, tuple(sorted(paths)), document="file", column="text")


def cache_folder() -> Path:
    """The folder of the cache: linformer_kit in $XDG_CACHE_HOME, or in ~/.cache.

    Raises:
        InputError: without a home folder.
    """
    folder = os.path.expanduser(f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/linformer_kit")
    if folder.startswith("~"):
        raise InputError(f"XDG_CACHE_HOME: expected a folder, got {folder} without a home folder")
    return Path(folder)


def cached_dataset(path: Path, schema: pyarrow.Schema, batches: Callable[[], Iterable[pyarrow.RecordBatch]]) -> Dataset:
    """Read an Arrow file, or write it first.

    Args:
        path: The file; its name contains a hash of everything that its content depends on.
        schema: Schema of the file.
        batches: Called to make the content if the file is missing or damaged.

    Returns:
        The memory-mapped data set.

    Raises:
        InputError: The file cannot be written, since its folder cannot be.
        OSError: It cannot be written for another reason; the error has the name of the file.
    """
    if path.exists():
        try:
            return Dataset.from_file(str(path))
        except (pyarrow.ArrowException, OSError):
            pass  # Damaged: write it again. Do not remove it: another process may just have replaced it.
    check_writable(path.parent, "XDG_CACHE_HOME")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as staged, pyarrow.ipc.new_stream(str(staged), schema) as writer:
        for batch in batches():
            writer.write_batch(batch)
    return Dataset.from_file(str(path))
