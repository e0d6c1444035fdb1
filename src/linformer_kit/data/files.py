"""Search for the files of a corpus, and fingerprints of their contents."""

from __future__ import annotations

import atexit
import hashlib
import json
import platform
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linformer_kit.data.validate import SUFFIXES, check_exists, check_found, check_not_empty, check_suffix
from linformer_kit.errors import InputError
from linformer_kit.files.writing import whole_file

# Third-party packages, and tests, which are most of the files and unlike the other source.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Part of every fingerprint: increase it when a rule in documents.py gives other documents for the same file.
_RULES_VERSION = 1


@dataclass(frozen=True)
class TextFiles:
    """Files and how to read them.

    Attributes:
        name: Name for messages.
        paths: The files, sorted, each once.
        document: Rule for text files, a key of `documents.RULES`.
        column: Text column of the other files.
    """

    name: str
    paths: tuple[Path, ...]
    document: str
    column: str

    def fingerprint(self, cache: Path) -> str:
        """Return a hash of what the documents depend on: contents and order of the files, and how they are read.

        Paths and times of the files have no influence, so a second copy of the same text has the same hash. The hash
        of the contents is cached by paths, sizes and times, so unchanged files are read only once.

        Args:
            cache: Folder of the cached hashes.

        Raises:
            InputError: A file cannot be read.
        """
        contents = _known_contents(self.paths, cache) or _contents(self.paths, cache)
        return _hash_of([_RULES_VERSION, self.document, self.column, contents])


def _known_contents(paths: Iterable[Path], cache: Path) -> str | None:
    try:
        known = _cache_entry(paths, cache).read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return known if re.fullmatch("[0-9a-f]{64}", known) else None


def _contents(paths: Iterable[Path], cache: Path) -> str:
    """Hash the contents of files in their order, and their suffixes, and cache the result."""
    entry = _cache_entry(paths, cache)  # before reading: a file that changes meanwhile gets another entry next time
    hashes = []
    for path in tqdm(paths, desc="Hashing text", unit=" files", delay=2):
        try:
            with path.open("rb") as file:
                hashes.append((path.suffix.lower(), hashlib.file_digest(file, "sha256").hexdigest()))
        except OSError as error:
            raise InputError(f"{path}: expected a file that can be read, got {error.strerror}") from None
    contents = _hash_of(hashes)
    with suppress(OSError):  # without a writable cache, files are hashed again the next time
        entry.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(entry) as staged:
            staged.write_text(contents, encoding="ascii")
    return contents


def _cache_entry(paths: Iterable[Path], cache: Path) -> Path:
    """The cache file for the hash of some files, named by their paths, sizes and times."""
    stats = [(str(path.resolve()), path.stat()) for path in paths]
    # Copies may keep the modification time of the original, but the ctime of a file cannot be set.
    known = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for name, stat in stats]
    return cache / _hash_of(known)


def _hash_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode(errors="surrogateescape")).hexdigest()


def as_file(path: Path) -> Path:
    """A pipe or standard input as a file that can be read more than once; any other path unchanged.

    What a pipe holds is copied into a temporary file, which is removed at exit; without a suffix it is text.
    """
    if not path.exists() or path.is_dir() or (path.is_file() and (path.suffix or not path.is_symlink())):
        return path
    if (target := path.resolve()).is_file():  # standard input that is a file, as in `< texts.csv`
        return target
    folder = tempfile.TemporaryDirectory(prefix="linformer-")
    atexit.register(folder.cleanup)
    copy = Path(folder.name) / (path.name if path.suffix else f"{path.name}.txt")
    with path.open("rb") as source, copy.open("wb") as file:
        shutil.copyfileobj(source, file)
    return copy


def find_files(patterns: list[str], *, field: str, suffixes: tuple[str, ...] = SUFFIXES) -> tuple[Path, ...]:
    """Find the files that patterns match.

    Args:
        patterns: Files, folders (searched recursively) and globs (`**` is any depth). Hidden files are only used if
            they are named explicitly.
        field: Name of the setting of the patterns, for errors.
        suffixes: Supported suffixes.

    Returns:
        The files, sorted, each once.

    Raises:
        InputError: A pattern matches no file, or names a file that is empty or has another suffix.
    """
    found = [path for pattern in patterns for path in _match(pattern, field, suffixes)]
    return tuple(sorted({path.resolve(): path for path in found}.values()))


def _match(pattern: str, field: str, suffixes: tuple[str, ...]) -> list[Path]:
    if not pattern:
        raise InputError(f"{field}: expected a file, a folder or a glob, got an empty name")
    path = as_file(Path(pattern).expanduser())
    if path.is_file():
        check_suffix(path, field=field, suffixes=suffixes)
        check_not_empty(path, field=field)
        return [path]
    if not any(character in pattern for character in "*?["):
        check_exists(path, field=field)
    glob_pattern = f"{escape(str(path))}/**/*" if path.is_dir() else str(path)
    paths = [Path(name) for name in glob(glob_pattern, recursive=True)]
    texts = [path for path in paths if path.suffix.lower() in suffixes and path.is_file()]
    check_found(texts, pattern, field=field, suffixes=suffixes)
    return texts


def standard_library() -> TextFiles:
    """Return the built-in corpus: the source of the Python standard library, one document per file."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if _NOT_LIBRARY.isdisjoint(path.relative_to(root).parts))
    return TextFiles(
        name=f"standard library of Python {platform.python_version()}",
        paths=tuple(sorted(paths)),
        document="python_source",
        column="text",
    )
