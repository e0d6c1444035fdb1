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
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.runs import check_how_to_start, check_made_from
from linformer_kit.files.writing import write_new, write_whole
from linformer_kit.inference.batches import together


def find_texts(settings: PredictSettings | EmbedSettings, *extra_files: Path) -> tuple[Path, ...]:
    """Find the files with the texts, and check the output before a model is loaded.

    Args:
        settings: Files, column and output.
        extra_files: Other files that are written.

    Raises:
        InputError: for files that do not exist or are empty, a column of files without columns, and an output that
            exists, unless it is to be resumed or overwritten, or that is one of these files.
    """
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    paths = find_files([settings.file], field="file")
    if settings.text_column is not None and not any(map(is_table, paths)):
        raise InputError(f"text_column: expected none for lines of text, got {settings.text_column!r}")
    if settings.output is None:
        return paths
    output = Path(settings.output)
    if output.is_dir():
        raise InputError(f"output: expected a file, got the folder {output}")
    for written in (output, *_part_and_record(output), *extra_files):
        if any(written.exists() and written.samefile(path) for path in paths):
            raise InputError(f"output: expected another file than that of the texts, got {written}")
        if not (settings.resume or settings.overwrite):
            _check_new(written)
    return paths


def write_rows(
    settings: PredictSettings | EmbedSettings,
    paths: tuple[Path, ...],
    identity: dict[str, Any],
    texts: Iterable[Text],
    total: int,
    rows: Callable[[list[Text], int], bytes],
    *,
    header: Callable[[], bytes] = bytes,
) -> None:
    """Write what is computed from texts, group by group; the output has its name when it is complete.

    Until then it is `OUTPUT.part`. `OUTPUT.run.json` records what it is made from, and after each group the number of
    texts that are done and of bytes in the output; a resumed run continues there.

    Args:
        settings: The output, and whether to resume or to overwrite it.
        paths: The files with the texts.
        identity: What the output is made from besides these files; the same in a run to resume.
        texts: All texts.
        total: Their number.
        rows: From some texts, and the number of texts before them, to what is written for them.
        header: Makes the start of the output, once it is claimed.

    Raises:
        InputError: for an output that another process has begun, or one to resume that is shorter than recorded or
            made from other things.
    """
    output = Path(str(settings.output))
    part, record = _part_and_record(output)
    identity = identity | {"files": [[path.name, file_fingerprint(path)] for path in paths]}
    output.parent.mkdir(parents=True, exist_ok=True)
    done = size = 0  # texts and bytes
    if settings.resume and (output.exists() or record.exists()):
        done, size = _recorded(output, identity)
    elif not settings.overwrite:
        try:
            write_new(record, "{}")  # of processes that start at once, one creates it
        except FileExistsError:
            _check_new(record)

    def remaining() -> Iterator[tuple[int, bytes]]:
        if not size:
            yield 0, header()
        for group in together(itertools.islice(texts, done, None), total, done):
            yield len(group), rows(group, done)

    _write_record(record, identity, done, size)
    with part.open("r+b" if part.exists() else "wb") as file:
        file.truncate(size)
        file.seek(size)
        for count, data in remaining():
            with errors_named(output):
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            done, size = done + count, size + len(data)
            _write_record(record, identity, done, size)
    os.replace(part, output)


def _part_and_record(output: Path) -> tuple[Path, Path]:
    """The file that holds an output until it is complete, and the record beside it."""
    return output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.run.json")


def _check_new(path: Path) -> None:
    if path.exists():
        raise InputError(
            f"output: expected a new file, got {path}; continue with --resume, or start again with --overwrite"
        )


def _recorded(output: Path, identity: dict[str, Any]) -> tuple[int, int]:
    """Numbers of texts and bytes of an output to resume, of which at least so many bytes are in its part."""
    part, record = _part_and_record(output)
    if not record.exists():
        raise InputError(f"resume: expected {record} beside {output}, got none")
    before = read_json(record)
    if not before:  # of a process that was killed when it had just started
        return 0, 0
    check_made_from(record, before, identity)
    done, size = before["texts"], before["bytes"]
    written = part if part.exists() else output  # the run may be complete
    if size and (not written.exists() or written.stat().st_size < size):
        raise InputError(f"resume: expected {size:,} bytes in {written}, got fewer")
    if size and written != part:
        os.replace(written, part)
    return done, size


def _write_record(record: Path, identity: dict[str, Any], done: int, size: int) -> None:
    write_whole(record, json.dumps(identity | {"texts": done, "bytes": size}, indent=2) + "\n")
