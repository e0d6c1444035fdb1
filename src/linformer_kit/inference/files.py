"""The file that a command reads texts from, and outputs that are written as they are computed and can be resumed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from linformer_cli.errors import InputError, errors_named
from linformer_kit.data.files import as_file, check_file
from linformer_kit.data.read import is_table
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import check_made_from
from linformer_kit.files.writing import write_new, write_whole


def file_of_texts(name: str) -> Path:
    """The file with the texts.

    Raises:
        InputError: if it does not exist, is empty or of an unknown kind.
    """
    path = as_file(Path(name).expanduser())
    check_file(path, field="file")
    return path


def check_not_read(paths: Iterable[Path], output: Path, *others: Path) -> None:
    """Reject an output, or other files beside it, that would overwrite the files with the texts."""
    for path, place in itertools.product(paths, (output, part_of(output), mark_of(output), *others)):
        if place.exists() and place.samefile(path):
            raise InputError(f"output: expected another file than that of the texts, got {place}")


def check_text_column(column: str | None, *paths: Path, field: str = "text_column") -> None:
    """Reject a column of files of which none is a table; `field` is its setting."""
    if column is not None and not any(map(is_table, paths)):
        raise InputError(f"{field}: expected none for lines of text, got {column!r}")


def check_new(path: Path) -> None:
    """Reject an output that exists."""
    if path.exists():
        raise InputError(
            f"output: expected a new file, got {path}; continue with --resume, or start again with --overwrite"
        )


def part_of(output: Path) -> Path:
    """The file that holds an output until it is complete."""
    return output.with_name(f"{output.name}.part")


def mark_of(output: Path) -> Path:
    """The file beside an output that records what it is made from, and how much of it is whole."""
    return output.with_name(f"{output.name}.run.json")


class GrowingFile:
    """An output that is written group by group, and has its name when it is complete.

    Until then it is `OUTPUT.part`. `OUTPUT.run.json` records what it is made from, and after each group the number of
    texts that are done and of bytes that they take; a resumed run continues there.

    Args:
        output: The file.
        identity: What it is made from; the same in a run to resume.
        resume: Whether to continue an earlier run, if there is one.
        overwrite: Whether to replace an existing output.

    Attributes:
        texts: Number of texts that are done.
        bytes: Number of bytes that they take.

    Raises:
        InputError: for an output that exists, or one to resume that is shorter than recorded or made from other things.
    """

    def __init__(self, output: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        self._output, self._part, self._mark = output, part_of(output), mark_of(output)
        self._identity = identity
        self.texts = self.bytes = 0
        output.parent.mkdir(parents=True, exist_ok=True)
        if resume and (output.exists() or self._mark.exists()):
            self._continue()
        elif not overwrite:
            self._begin()
        self._record()
        self._file = self._part.open("r+b" if self._part.exists() else "wb")
        self._file.truncate(self.bytes)
        self._file.seek(self.bytes)

    def _begin(self) -> None:
        """Check that the output is new; of processes that start at once, one creates its record."""
        for path in (self._output, self._part):
            check_new(path)
        try:
            write_new(self._mark, "{}")
        except FileExistsError:
            check_new(self._mark)

    def _continue(self) -> None:
        if not self._mark.exists():
            raise InputError(f"resume: expected {self._mark} beside {self._output}, got none")
        before = read_json(self._mark)
        if before:  # else a process that has just started wrote it
            check_made_from(self._mark, before, self._identity)
        done = before.get("texts", 0), before.get("bytes", 0)
        if not all(isinstance(number, int) and number >= 0 for number in done):
            raise InputError(f"resume: expected numbers of texts and bytes in {self._mark}, got {done}")
        self.texts, self.bytes = done
        written = self._part if self._part.exists() else self._output  # the run may be complete
        if self.bytes and (not written.exists() or written.stat().st_size < self.bytes):
            raise InputError(f"resume: expected {self.bytes:,} bytes in {written}, got fewer")
        if self.bytes and written != self._part:
            os.replace(written, self._part)

    def write(self, data: bytes, texts: int) -> None:
        """Write and record what was computed from the next texts."""
        with errors_named(self._output):
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        self.texts, self.bytes = self.texts + texts, self.bytes + len(data)
        self._record()

    def _record(self) -> None:
        done = {"texts": self.texts, "bytes": self.bytes}
        write_whole(self._mark, json.dumps(self._identity | done, indent=2) + "\n")

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._part, self._output)
