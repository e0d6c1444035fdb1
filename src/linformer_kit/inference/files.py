"""The files with the texts of a command, and an output that grows as it is computed and can be resumed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError, errors_named
from linformer_cli.settings import EmbedSettings, PredictSettings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import Text, is_table
from linformer_kit.files.folders import check_how_to_start, check_made_from
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.batches import in_groups


class TextsAndOutput:
    """Files with texts, and a file of what is computed from them, which grows and can be resumed.

    Until the output is complete it is `OUTPUT.part`. `OUTPUT.run.json` records what it is made from, and after each
    group of texts the numbers of texts that are done and of bytes in the output; a resumed run continues there.

    Args:
        settings: Files, column and output, which is checked before a model is loaded.
        extra_files: Other files that are written.

    Attributes:
        paths: The files with the texts.

    Raises:
        InputError: for files that do not exist or are empty, a column of files without columns, and an output that
            exists, unless it is to be resumed or overwritten, or that is one of these files.
    """

    def __init__(self, settings: PredictSettings | EmbedSettings, *extra_files: Path) -> None:
        check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
        self._resume, self._goes_on = settings.resume, settings.resume or settings.overwrite
        self.paths = find_files([settings.file], field="file")
        column = settings.text_column
        if column is not None and not any(is_table(path, column) for path in self.paths):
            raise InputError(f"text_column: expected none for lines of text, got {column!r}")
        if settings.output is None:
            return
        self._output = Path(settings.output)
        if self._output.is_dir():
            raise InputError(f"output: expected a file, got the folder {self._output}")
        self._part, self._record = (
            self._output.with_name(f"{self._output.name}.{end}") for end in ("part", "run.json")
        )
        for written in filter(Path.exists, (self._output, self._part, self._record, *extra_files)):
            if any(map(written.samefile, self.paths)):
                raise InputError(f"output: expected another file than that of the texts, got {written}")
            if not self._goes_on:
                advice = "continue with --resume, or start again with --overwrite"
                raise InputError(f"output: expected a new file, got {written}; {advice}")

    def count(self, texts: Iterable[Text]) -> int:
        """The number of texts, one or more. Unreadable files raise an error here, before a model is loaded."""
        total = sum(1 for _ in texts)
        if not total:
            raise InputError(f"file: expected texts, got none in {' '.join(path.name for path in self.paths)}")
        return total

    def write(
        self,
        identity: dict[str, Any],
        texts: Iterable[Text],
        total: int,
        rows: Callable[[list[Text], int], bytes],
        header: Callable[[], bytes] = bytes,
    ) -> None:
        """Write the output.

        Args:
            identity: What it is made from besides the files; the same in a run to resume.
            texts: All texts.
            total: Their number.
            rows: From some texts, and the number of texts before them, to what is written for them.
            header: Makes the start of the output, once it is claimed.
        """
        identity = identity | {"files": [[path.name, file_fingerprint(path)] for path in self.paths]}
        self._output.parent.mkdir(parents=True, exist_ok=True)
        done, size = self._recorded(identity) if self._resume else (0, 0)  # texts and bytes

        def remaining() -> Iterator[tuple[int, bytes]]:
            yield 0, b""  # so that there is a record before anything else
            if not size:
                yield 0, header()
            for group in in_groups(itertools.islice(texts, done, None), total, done):
                yield len(group), rows(group, done)

        # x: of processes that start at once, one creates it.
        with self._part.open("r+b" if self._goes_on and self._part.exists() else "xb") as file:
            file.truncate(size)
            file.seek(size)
            for count, data in remaining():
                with errors_named(self._output):
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                done, size = done + count, size + len(data)
                write_whole(self._record, json.dumps(identity | {"texts": done, "bytes": size}, indent=2) + "\n")
        os.replace(self._part, self._output)

    def _recorded(self, identity: dict[str, Any]) -> tuple[int, int]:
        """Numbers of texts and bytes of an output to resume, of which at least so many bytes are in its part."""
        output, part, record = self._output, self._part, self._record
        if not record.exists():
            if output.exists():
                raise InputError(f"resume: expected {record} beside {output}, got none")
            return 0, 0
        before = read_json(record)
        check_made_from(record, before, identity)
        for name in ("texts", "bytes"):
            if not isinstance(before.get(name), int) or before[name] < 0:
                raise InputError(f"resume: expected a number of {name} in {record}, got {before.get(name)!r}")
        done, size = before["texts"], before["bytes"]
        written = part if part.exists() else output  # the run may be complete
        if size and (not written.exists() or written.stat().st_size < size):
            raise InputError(f"resume: expected {size:,} bytes in {written}, got fewer")
        if size and written != part:
            os.replace(written, part)
        return done, size
