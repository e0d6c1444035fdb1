"""Manifests: size and SHA-256 of every file of a folder, to detect damage; and atomic writes of whole folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError
from linformer_kit.files.writing import OLD, PART, flush, remove_tree, write_whole

MANIFEST = "manifest.json"


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
    files = _listed_or_wrong(folder / MANIFEST)
    if isinstance(files, str):
        return files
    for name, known in files.items():
        if Path(name).match(only) and (found := _difference(folder / name, known)):
            return f"{folder / name}: {found}"
    return None


def listed(folder: Path) -> list[str]:
    """Names of the files that the manifest of a folder lists; none without a valid one."""
    files = _listed_or_wrong(folder / MANIFEST)
    return [] if isinstance(files, str) else list(files)


def listed_files(folder: Path) -> list[Path]:
    """Existing files that the manifest of a folder lists, except below symbolic links."""
    paths = [folder / name for name in listed(folder)]
    return [path for path in paths if path.is_file() and not any(map(Path.is_symlink, _between(path, folder)))]


def remove_listed(folder: Path) -> None:
    """Remove the files that a manifest lists, and subfolders that become empty."""
    for path in listed_files(folder):
        path.unlink()
        for parent in _between(path, folder):
            if not any(parent.iterdir()):
                parent.rmdir()


def _between(path: Path, folder: Path) -> list[Path]:
    """The folders between a file and `folder`, the deepest first."""
    return [parent for parent in path.parents if folder in parent.parents]


@contextmanager
def checked_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; it gets a manifest and then replaces `folder` by renaming.

    After an error the temporary folder is removed and `folder` is unchanged. After a kill, `recover` cleans up.
    """
    part, old = (folder.with_name(f".{folder.name}{end}") for end in (PART, OLD))
    with _temporary(part):
        yield part
    if os.path.lexists(folder):
        remove_tree(old)
        os.replace(folder, old)
    os.replace(part, folder)
    flush(folder.parent)
    with suppress(OSError):
        remove_tree(old)


@contextmanager
def whole_contents(folder: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder, whose files are then moved into `folder` beside its other files, the manifest last.

    After an error while writing, the temporary folder is removed and `folder` is unchanged.
    """
    part = folder / f".{name}{PART}"
    with _temporary(part):
        yield part
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in sorted(part.iterdir(), key=lambda path: path.name == MANIFEST):
        if path.is_dir():
            remove_tree(folder / path.name)
        os.replace(path, folder / path.name)
    part.rmdir()
    flush(folder)


@contextmanager
def _temporary(part: Path) -> Iterator[None]:
    """Make an empty folder, which gets a manifest at the end; after an error it is removed."""
    remove_tree(part)
    part.mkdir(parents=True)
    try:
        yield
        write_manifest(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def recover(parent: Path, names: re.Pattern[str]) -> None:
    """Clean up after processes that were killed in `checked_folder`, and restore folders that they had moved.

    `parent` contains the folders, whose names match the pattern.
    """
    for path in parent.glob(".*"):
        name, end = path.stem.removeprefix("."), path.suffix
        if end not in (PART, OLD) or not names.fullmatch(name) or not path.is_dir():
            continue
        if end == PART or (parent / name).exists():
            remove_tree(path)
        else:
            os.replace(path, parent / name)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InputError: if the file is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected JSON of names and values, got {type(content).__name__}")
    return content


def _digest(files: dict[str, Any]) -> str:
    """Hash of the list itself, to tell a damaged manifest from a damaged file."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _listed_or_wrong(path: Path) -> dict[str, Any] | str:
    """Entries of a manifest by file name, or a description of what is wrong with it."""
    if not path.is_file():
        return f"{path}: expected a manifest, got no such file"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = content["files"]
        if set(content) != {"files", "sha256"} or content["sha256"] != _digest(files):
            return f"{path}: expected content that matches the SHA-256 in it, got other content"
        for name, known in files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{path}: expected names of files in its folder, got {name!r}"
            if not (isinstance(known["bytes"], int) and isinstance(known["sha256"], str)):
                return f"{path}: expected a size and a SHA-256 of {name}, got {known!r}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{path}: expected names, sizes and SHA-256 of files, got {type(error).__name__}"
    return files


def _difference(path: Path, known: dict[str, Any]) -> str | None:
    try:
        if not path.is_file():
            return "expected a file, got none"
        if (size := path.stat().st_size) != known["bytes"]:
            return f"expected {known['bytes']} bytes, got {size}"
        if (digest := file_fingerprint(path)) != known["sha256"]:
            return f"expected SHA-256 {known['sha256'][:12]}…, got {digest[:12]}…"
    except OSError as error:
        return f"expected a file that can be read, got {error.strerror}"
    return None
