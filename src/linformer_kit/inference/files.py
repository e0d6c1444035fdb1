"""The files with the texts of a command, and an output that grows as it is computed and can be resumed."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError, errors_named
from linformer_cli.settings import EmbedSettings, PredictSettings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import Text, is_table
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.runs import check_how_to_start, check_made_from
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.batches import together


def find_texts(settings: PredictSettings | EmbedSettings, *extra_files: Path) -> tuple[Path, ...]:
    """Find the files with the texts, and check the output and extra files to be written, before a model is loaded.

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
    for written in filter(Path.exists, (output, *_beside(output), *extra_files)):
        if any(map(written.samefile, paths)):
            raise InputError(f"output: expected another file than that of the texts, got {written}")
        if not (settings.resume or settings.overwrite):
            advice = "continue with --resume, or start again with --overwrite"
            raise InputError(f"output: expected a new file, got {written}; {advice}")
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
    """Write what is computed from texts, in groups, to standard output or a file, which has its name once complete.

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
        InputError: for an output to resume that is shorter than recorded or made from other things.
        FileExistsError: for an output that another process has begun.
    """
    done = size = 0  # texts and bytes
    if settings.output is None:
        for group in together(texts, total):
            sys.stdout.buffer.write(rows(group, done))
            done += len(group)
        return
    output = Path(settings.output)
    part, record = _beside(output)
    identity = identity | {"files": [[path.name, file_fingerprint(path)] for path in paths]}
    output.parent.mkdir(parents=True, exist_ok=True)
    if settings.resume:
        done, size = _recorded(output, identity)
    goes_on = (settings.resume or settings.overwrite) and part.exists()
    with part.open("r+b" if goes_on else "xb") as file:  # x: of processes that start at once, one creates it
        file.truncate(size)
        file.seek(size)

        def append(data: bytes, texts: int) -> None:
            nonlocal done, size
            with errors_named(output):
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            done, size = done + texts, size + len(data)
            write_whole(record, json.dumps(identity | {"texts": done, "bytes": size}, indent=2) + "\n")

        append(b"", 0)
        if not size:
            append(header(), 0)
        for group in together(itertools.islice(texts, done, None), total, done):
            append(rows(group, done), len(group))
    os.replace(part, output)


def _beside(output: Path) -> tuple[Path, Path]:
    """The file that holds an output until it is complete, and the record beside it."""
    return output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.run.json")


def _recorded(output: Path, identity: dict[str, Any]) -> tuple[int, int]:
    """Numbers of texts and bytes of an output to resume, of which at least so many bytes are in its part."""
    part, record = _beside(output)
    if not record.exists():
        if output.exists():
            raise InputError(f"resume: expected {record} beside {output}, got none")
        return 0, 0
    before = read_json(record)
    check_made_from(record, before, identity)
    done, size = before["texts"], before["bytes"]
    written = part if part.exists() else output  # the run may be complete
    if size and (not written.exists() or written.stat().st_size < size):
        raise InputError(f"resume: expected {size:,} bytes in {written}, got fewer")
    if size and written != part:
        os.replace(written, part)
    return done, size
