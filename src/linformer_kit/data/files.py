"""Which files a corpus is made of."""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path

from linformer_kit.data.validate import SUFFIXES, check_exists, check_found, check_not_empty, check_suffix

# Not written by the library's authors, or tests, which are most of the files and little like other text.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Part of every fingerprint: raise it when a rule in documents.py changes what it makes of the same file.
_RULES_VERSION = 1


@dataclass(frozen=True)
class TextFiles:
    """Files and how to read them.

    Attributes:
        name: What a person calls them.
        paths: The files, sorted, each once.
        document: Rule for text files, a key of `documents.RULES`.
        column: Text column of the other files.
    """

    name: str
    paths: tuple[Path, ...]
    document: str
    column: str

    def fingerprint(self) -> str:
        """Return a hash of everything that the documents depend on: where, how large, how old, how read."""
        stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        made_of = json.dumps([_RULES_VERSION, self.document, self.column, stats])
        return hashlib.sha256(made_of.encode(errors="surrogateescape")).hexdigest()


def find_files(patterns: list[str], *, field: str, suffixes: tuple[str, ...] = SUFFIXES) -> tuple[Path, ...]:
    """Find the files that a person named.

    Args:
        patterns: Files, folders (searched to any depth) and globs (`**` is any depth). Hidden files, and files with
            other suffixes, count only where they are named in full.
        field: Setting that holds the patterns, for errors.
        suffixes: Those of files that can be used.

    Returns:
        The files, sorted, each once.

    Raises:
        InputError: A pattern gives no file, or a file that cannot be text.
    """
    found = [path for pattern in patterns for path in _match(pattern, field, suffixes)]
    return tuple(sorted({path.resolve(): path for path in found}.values()))


def _match(pattern: str, field: str, suffixes: tuple[str, ...]) -> list[Path]:
    path = Path(pattern).expanduser()
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
    """Return the built-in corpus: the source of Python's own standard library, one file one document."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if _NOT_LIBRARY.isdisjoint(path.relative_to(root).parts))
    return TextFiles(
        name=f"standard library of Python {platform.python_version()}",
        paths=tuple(sorted(paths)),
        document="python_source",
        column="text",
    )
