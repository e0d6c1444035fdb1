"""The files with the texts of a command, and an output that grows as it is computed and can be resumed."""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from linformer_cli.errors import InputError, Stopped, errors_named, input_errors
from linformer_cli.outputs import check_new_files
from linformer_cli.settings import EmbedSettings, PredictSettings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import Text, TextColumns, is_table, read_inputs
from linformer_kit.files.folders import check_made_from
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.stopping import stop_requests
from linformer_kit.files.writing import whole_file, write_whole
from linformer_kit.inference.batches import TextModel

_SECONDS = 30.0  # between two saves, at least
_MAY_CHANGE = ("model", "file", "out", "resume", "device", "batch_size")  # hashed instead, or rounding


class TextsAndOutput:
    """Files with texts, and a file of what is computed from them, which grows and can be resumed.

    The output is `OUTPUT.part` until it is complete. `OUTPUT.run.json` records what it depends on, how many texts are
    done, and how many bytes these are. Texts run in groups, and a group in batches of similar length:
    `OUTPUT.batches.npz` has the results for the group that comes next, so a resumed run repeats no batch. All are saved
    after a batch, at most every 30 seconds, and when the command is asked to stop.

    Args:
        settings: Files, column and output, which is checked before a model is loaded.
        extra_files: Other files that are written.

    Attributes:
        texts: A function that reads all texts, and
        total: their number; both are there after `find_texts`.

    Raises:
        InputError: for files that do not exist or are empty, a column of files without columns, and an output that
            exists, unless it is to be resumed, or that is one of these files.
    """

    def __init__(self, settings: PredictSettings | EmbedSettings, *extra_files: Path) -> None:
        self._settings, self._goes_on = settings, settings.resume
        self.paths = find_files(settings.file, field="file")
        column = settings.text_column
        if column is not None and not any(is_table(path, column) for path in self.paths):
            raise InputError(f"text_column: expected none for lines of text, got {column!r}")
        if settings.out is None:
            return
        self._output = Path(settings.out)
        self._part, self._record, self._batches = (
            Path(f"{self._output}.{end}") for end in ("part", "run.json", "batches.npz")
        )
        files = (self._output, self._part, self._record, self._batches, *extra_files)
        for written in filter(Path.exists, files):
            if any(map(written.samefile, self.paths)):
                raise InputError(f"out: expected another file than that of the texts, got {written}")
        check_new_files(files, goes_on=self._goes_on)

    def find_texts(self, columns: TextColumns, **how: Any) -> None:
        """Count the texts, one or more; options as for `read_inputs`. Unreadable files raise an error here."""
        self.texts = functools.partial(read_inputs, self.paths, columns, **how)
        self.total = sum(1 for _ in self.texts())
        if not self.total:
            raise InputError(f"file: expected texts, got none in {' '.join(path.name for path in self.paths)}")

    def write(self, model: TextModel, identity: dict[str, Any], rows: Callable[[list[Text], int], bytes]) -> None:
        """Write the output.

        Args:
            model: The model that `rows` runs.
            identity: All that the output depends on besides files and settings as given; a run to resume has the same.
            rows: Computes what is written for a group of texts; its second argument is the number of texts before them.

        Raises:
            Stopped: after Ctrl-C or SIGTERM, once all is saved.
        """
        settings = {name: value for name, value in vars(self._settings).items() if name not in _MAY_CHANGE}
        self._identity = settings | identity | {"files": [[path.name, file_fingerprint(path)] for path in self.paths]}
        self._output.parent.mkdir(parents=True, exist_ok=True)
        done, size = self._recorded() if self._settings.resume else (0, 0)  # texts and bytes

        # x: of processes that start at once, one creates it.
        with self._part.open("r+b" if self._goes_on and self._part.exists() else "xb") as file:
            file.truncate(size)
            file.seek(size)
            self._save(file, done)  # so that there is a record before anything else
            saved = time.monotonic()
            with stop_requests() as signals:

                def save_in_time(batches: list[np.ndarray], finished: int) -> None:
                    nonlocal saved
                    if not signals and time.monotonic() < saved + _SECONDS:
                        return
                    self._save(file, done, batches)
                    saved = time.monotonic()
                    if signals:
                        said = f"stopped after {finished:,} of {self.total:,} texts"
                        next_text = f"--resume goes on from text {min(finished + 1, self.total):,}"
                        raise Stopped(f"{said}; {next_text}", signal=signals[0])

                left = itertools.islice(self.texts(), done, None)
                for group in model.groups(left, self.total, done, self._saved_batches(), save_in_time):
                    with errors_named(self._output):
                        file.write(rows(group, done))
                    done += len(group)
                    save_in_time([], done)
            self._save(file, done)
        os.replace(self._part, self._output)
        self._batches.unlink(missing_ok=True)

    def _save(self, file: BinaryIO, done: int, batches: Sequence[np.ndarray] = ()) -> None:
        """Flush the output to disk and record how much is done: texts, and what is computed for those after them."""
        with errors_named(self._output):
            file.flush()
            os.fsync(file.fileno())
        record = json.dumps(self._identity | {"texts": done, "bytes": file.tell()}, indent=2) + "\n"
        write_whole(self._record, record)
        if batches:
            counts, rows = [len(each) for each in batches], np.concatenate(batches)
            with whole_file(self._batches) as part, part.open("wb") as staged:
                np.savez(staged, record=record, counts=counts, rows=rows)

    def _saved_batches(self) -> list[np.ndarray]:
        """What was computed after the recorded texts; none if it is of another run, or of earlier texts."""
        if not self._batches.exists():
            return []
        what = f"{self._batches}: expected what a run has saved"
        with input_errors(what), np.load(self._batches) as saved:
            if str(saved["record"]) != self._record.read_text(encoding="utf-8"):
                return []
            return np.split(saved["rows"], np.cumsum(saved["counts"])[:-1])

    def _recorded(self) -> tuple[int, int]:
        """Texts and bytes of the output to resume; its part has at least that many bytes."""
        output, part, record = self._output, self._part, self._record
        if not record.exists():
            if output.exists():
                raise InputError(f"resume: expected {record} beside {output}, got none")
            return 0, 0
        before = read_json(record)
        check_made_from(record, before, self._identity)
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
