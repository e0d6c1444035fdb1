"""Fingerprints of contents; and manifests: size and SHA-256 of every file of a folder, to detect damage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError
from linformer_kit.files.writing import MANIFEST, flush, write_whole


def fingerprint(*parts: Any) -> str:
    """Hexadecimal SHA-256 of values in their order: the one hash of what a result or a cached file depends on.

    A part is a value of JSON, in which a `Path` stands for the content of that file; or an iterator of such values,
    which are hashed as they come.
    """
    content = hashlib.sha256()
    for part in parts:
        for value in part if isinstance(part, Iterator) else (part,):
            content.update(json.dumps(value, default=file_fingerprint).encode() + b"\n")
        content.update(b"\n")  # the end of an iterator
    return content.hexdigest()


def file_fingerprint(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Flush all files of a folder tree to disk and record their sizes and SHA-256 in `manifest.json`."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST):
        flush(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": file_fingerprint(path)}
    # No final line break: a truncated one would go unnoticed.
    write_whole(folder / MANIFEST, json.dumps({"files": files, "sha256": _digest(files)}, indent=2))
    flush(folder)


def damage(folder: Path, *, only: str = "*") -> str | None:
    """Describe the first difference between a folder and its manifest, with the name of the file; None if intact.

    Files that the manifest does not list are ignored, and those that the pattern `only` does not match.
    """
    try:
        for name, known in _entries(folder).items():
            if Path(name).match(only):
                _check_file(folder / name, known)
    except InputError as error:
        return str(error)
    return None


def listed_files(folder: Path) -> list[Path]:
    """Existing files that the manifest of a folder lists, except below symbolic links; none without a valid one."""
    paths: list[Path] = []
    with suppress(InputError):
        paths = [folder / name for name in _entries(folder)]
    return [path for path in paths if path.is_file() and not any(map(Path.is_symlink, _between(path, folder)))]


def _between(path: Path, folder: Path) -> list[Path]:
    """The folders between a file and `folder`, the deepest first."""
    return [parent for parent in path.parents if folder in parent.parents]


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; an `InputError` if the file is not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected JSON of names and values, got {type(content).__name__}")
    return content


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Sizes and hashes, by file name; an `InputError` if the manifest is missing, damaged, or names files elsewhere."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{path}: expected a manifest, got no such file")
    content = read_json(path)
    files = content.get("files")
    if content != {"files": files, "sha256": _digest(files)}:
        raise InputError(f"{path}: expected content that matches the SHA-256 in it, got other content")
    if not isinstance(files, dict) or not all(isinstance(known, dict) for known in files.values()):
        raise InputError(f"{path}: expected a size and a SHA-256 of each file, got others")
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{path}: expected names of files in its folder, got {name!r}")
    return files


def _digest(files: Any) -> str:
    """Hash of the list itself, to tell a damaged manifest from a damaged file."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _check_file(path: Path, known: dict[str, Any]) -> None:
    """Raise an `InputError` for a file of another size or content."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: expected a file, got none")
        if (size := path.stat().st_size) != known.get("bytes"):
            raise InputError(f"{path}: expected {known.get('bytes')} bytes, got {size}")
        if (digest := file_fingerprint(path)) != known.get("sha256"):
            raise InputError(f"{path}: expected SHA-256 {str(known.get('sha256'))[:12]}…, got {digest[:12]}…")
    except OSError as error:
        raise InputError(f"{path}: expected a file that can be read, got {error.strerror}") from None
