"""The texts of files, and the file of what a model computes for each of them: it grows by groups and can be resumed."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from linformer_cli.errors import InputError, Stopped, errors_named
from linformer_cli.output_paths import LOCK, check_new_files
from linformer_cli.settings import EmbedSettings, PredictSettings
from linformer_cli.settings.declare import CountOrZero, settings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import Text, TextColumns, is_table, read_inputs
from linformer_kit.files.folders import check_made_from, locked
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.stopping import stop_requests
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.batches import Group, TextModel, size
from linformer_kit.report.base import table

_MAY_CHANGE = ("model", "file", "out", "resume", "device", "batch_size")  # hashed instead, or rounding
_SHOWN_FILES = 20


class InputTexts:
    """The texts of files, in the order given: each row of a table, and each file or line of others, blank ones too.

    Args:
        settings: Files, and the text column if there is one.
        first_row: The number of the first text in the results.

    Attributes:
        paths: The files; one that is named twice is there twice.
        total, characters: Number of all texts, and their `size`; after `find`.
        files: The first row and the number of rows of each file, likewise.

    Raises:
        InputError: for files that do not exist or are empty, and a column of files without columns.
    """

    def __init__(self, settings: PredictSettings | EmbedSettings, *, first_row: int) -> None:
        self.paths = find_files(settings.file, field="file", repeated=True)
        self._first_row = first_row
        column = settings.text_column
        if column is not None and not any(is_table(path, column) for path in self.paths):
            raise InputError(f"text_column: expected none for lines of text, got {column!r}")

    def find(self, columns: TextColumns, *, document: str) -> None:
        """Count the texts, one or more; options as for `read_inputs`. Unreadable files raise an error here."""
        self._read = functools.partial(read_inputs, columns=columns, document=document)
        self.total, self.characters = 0, 0
        self.files: list[dict[str, Any]] = []
        for path in self.paths:
            sizes = [size(text) for text in self._read([path])]
            self.files.append({"file": str(path), "first_row": self._first_row + self.total, "rows": len(sizes)})
            self.total, self.characters = self.total + len(sizes), self.characters + sum(sizes)
        if not self.total:
            raise InputError(f"file: expected texts, got none in {' '.join(path.name for path in self.paths)}")

    def __iter__(self) -> Iterator[Text]:
        return self._read(self.paths)

    def rows_by_file(self) -> str:
        """A Markdown table of the rows of each file, at most some of them; empty for one file."""
        if len(self.files) == 1:
            return ""
        shown = [[str(value) for value in each.values()] for each in self.files[:_SHOWN_FILES]]
        more = [f"and {len(self.files) - _SHOWN_FILES:,} more files"] if len(self.files) > _SHOWN_FILES else []
        return "\n".join([*table(["file", "first row", "rows"], shown), *more]) + "\n"


@functools.partial(settings, strict=True)
class Progress:
    """How much of an output is done."""

    texts: CountOrZero = 0
    bytes: CountOrZero = 0
    truncated: CountOrZero = 0  # texts
    counts: dict[str, CountOrZero] = field(default_factory=dict)  # of what is computed, such as classes

    def add(self, group: Group, counts: Mapping[str, int]) -> None:
        """Count the texts of a group, and what is computed for them."""
        self.texts += len(group.rows)
        self.truncated += int((group.lost > 0).sum())
        self.counts = dict(Counter(self.counts) + Counter(counts))


class OutputFile:
    """A file of what a model computes for texts, which grows by groups and can be resumed; or standard output.

    The output is `OUTPUT.part` until it is complete. `OUTPUT.run.json` records what it depends on, which rows are of
    which file, how many texts are done, and how many bytes these are.

    Args:
        settings: The output, which is checked before a model is loaded.
        texts: The texts.

    Raises:
        InputError: for an output that exists, unless it is to be resumed, or is a file of the texts.
    """

    def __init__(self, settings: PredictSettings | EmbedSettings, texts: InputTexts) -> None:
        self._settings, self._texts = settings, texts
        if settings.out is None:
            return
        self._output = Path(settings.out)
        self._part, self._record = (Path(f"{self._output}.{end}") for end in ("part", "run.json"))
        self._files = (self._output, self._part, self._record)
        for written in filter(Path.exists, self._files):
            if any(map(written.samefile, texts.paths)):
                raise InputError(f"out: expected another file than that of the texts, got {written}")
        check_new_files(self._files, goes_on=settings.resume)

    def write(
        self,
        model: TextModel,
        identity: dict[str, Any],
        content: Callable[[Group, int], tuple[bytes, Mapping[str, int]]],
        header: bytes = b"",
    ) -> Progress:
        """Run the model on all texts, and write the output.

        Args:
            model: The model.
            identity: All that the output depends on besides files and settings as given; a run to resume has the same.
            content: From the outputs for a group of texts and the number of texts before it: what is written for them,
                and counts of what was computed.
            header: The start of the file.

        Returns:
            The counts of all texts, those of the run that is resumed included.

        Raises:
            InputError: if another process writes the output.
            Stopped: after Ctrl-C or SIGTERM; the groups that were done are saved.
        """
        texts, progress = iter(self._texts), Progress()
        if self._settings.out is None:
            for group in model.groups(texts, self._texts.characters):
                written, counts = content(group, progress.texts)
                sys.stdout.buffer.write(written)
                progress.add(group, counts)
            return progress
        given = {name: value for name, value in vars(self._settings).items() if name not in _MAY_CHANGE}
        self._identity = given | identity
        self._identity["files"] = [[path.name, file_fingerprint(path)] for path in self._texts.paths]
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{self._output}{LOCK}"), "out"), stop_requests() as signals:
            check_new_files(self._files, goes_on=self._settings.resume)  # nothing was written meanwhile
            progress = self._recorded() if self._settings.resume else progress
            left = self._texts.characters - sum(map(size, itertools.islice(texts, progress.texts)))

            def stop_if_asked() -> None:
                if signals:
                    said = f"stopped after {progress.texts:,} of {self._texts.total:,} texts"
                    raise Stopped(f"{said}; --resume goes on from text {progress.texts + 1:,}", signal=signals[0])

            # x: where a file system has no locks, one of the processes that start at once creates it.
            with self._part.open("r+b" if self._settings.resume and self._part.exists() else "xb") as file:
                file.truncate(progress.bytes)
                file.seek(progress.bytes)
                if not progress.bytes:
                    file.write(header)
                self._save(file, progress)  # so that there is a record before anything else
                for group in model.groups(texts, left, stop_if_asked):
                    written, counts = content(group, progress.texts)
                    with errors_named(self._output):
                        file.write(written)
                    progress.add(group, counts)
                    self._save(file, progress)
            os.replace(self._part, self._output)
        return progress

    def _save(self, file: BinaryIO, progress: Progress) -> None:
        """Flush the output to disk and record how much is done."""
        with errors_named(self._output):
            file.flush()
            os.fsync(file.fileno())
        progress.bytes = file.tell()
        record = self._identity | {"rows": self._texts.files} | vars(progress)
        write_whole(self._record, json.dumps(record, indent=2) + "\n")

    def _recorded(self) -> Progress:
        """How much of the output to resume is done; its part has at least that many bytes."""
        output, part, record = self._output, self._part, self._record
        if not record.exists():
            if output.exists():
                raise InputError(f"resume: expected {record} beside {output}, got none")
            return Progress()
        before = read_json(record)
        check_made_from(record, before, self._identity)
        try:
            progress = Progress(**{name: before.get(name) for name in vars(Progress())})
        except InputError as error:
            raise InputError(f"resume: {record}: {error}") from None
        written = part if part.exists() else output  # the run may be complete
        if progress.bytes and (not written.exists() or written.stat().st_size < progress.bytes):
            raise InputError(f"resume: expected {progress.bytes:,} bytes in {written}, got fewer")
        if progress.bytes and written != part:
            os.replace(written, part)
        return progress
