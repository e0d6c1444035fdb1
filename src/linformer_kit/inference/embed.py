"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from linformer_kit.data.examples import TextColumns, read_inputs
from linformer_kit.data.files import find_files
from linformer_kit.data.tokenizer import tokenizer_fingerprint
from linformer_kit.errors import InputError, errors_named
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.chunks import embed_pieces, tokenise
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import (
    check_made_from,
    check_new,
    check_not_read,
    check_text_column,
    create_new,
    mark_of,
)
from linformer_kit.interop.loading import fingerprint
from linformer_kit.settings import EmbedSettings

_BATCHES = 32  # forward passes between two records of what is done; texts of like length share a pass
_NUMBER = np.dtype("<f4")


def embed(settings: EmbedSettings) -> tuple[int, Embedder]:
    """Embed the texts of files; write them as a float32 array `[texts, width]` in NumPy's format.

    Row i is the embedding of text i, as sentence-transformers computes it from the model's folder. The output appears
    when it is complete; until then it is `OUTPUT.part`, and `resume` continues it after an interruption.

    Returns:
        Number of texts, and the embedder, which has the number of texts that this call truncated.

    Raises:
        InputError: for files that cannot be read (nothing is written), a model that is no embedder of texts, an output
            that exists, or one to resume that was made from other files or another model.
    """
    output, part = _outputs(settings)
    paths = find_files([settings.file], field="file")
    check_not_read(paths, (output, part, mark_of(output)))
    check_text_column(settings.text_column, *paths)
    read = functools.partial(
        read_inputs, columns=TextColumns(settings.text_column or "text"), document=settings.document
    )
    counts = [sum(1 for _ in read([path])) for path in paths]  # rejects unreadable files before the model is loaded
    embedder = load_embedder(settings.model, settings, field="model")
    embedder.truncate(settings.max_length)
    identity = {
        "dtype": settings.dtype,  # before the fingerprint, which differs as well
        "model_fingerprint": fingerprint(embedder.sentences),
        "tokenizer_fingerprint": tokenizer_fingerprint(embedder.tokenizer),
        "modules": [repr(module) for module in embedder.sentences],
        "prompt": embedder.prompt,
        "files": [[path.name, file_fingerprint(path), count] for path, count in zip(paths, counts, strict=True)],
        **{name: getattr(settings, name) for name in ("text_column", "document", "pieces")},
        "max_length": embedder.limit,
        "bf16": embedder.bf16,
    }
    run = embedder.embed
    if settings.pieces:
        next(tokenise(embedder, [""])).room(embedder.limit)  # rejected before anything is written
        run = functools.partial(embed_pieces, embedder)
    texts = _done(settings, output, part, identity)
    bar = tqdm(total=sum(counts), initial=texts, unit=" texts", dynamic_ncols=True, delay=2)
    with errors_named(output), bar, _opened(output, part, (sum(counts), embedder.width), texts) as file:
        _record(output, identity, texts)
        for some in _groups(itertools.islice(read(paths), texts, None), embedder):
            file.write(run(some).astype(_NUMBER).tobytes())
            file.flush()
            os.fsync(file.fileno())
            texts += len(some)
            _record(output, identity, texts)
            bar.update(len(some))
    os.replace(part, output)
    return sum(counts), embedder


def _outputs(settings: EmbedSettings) -> tuple[Path, Path]:
    """The output, and what holds it until it is complete; checks the settings."""
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    if settings.batch_size < 1:
        raise InputError(f"batch_size: expected 1 or more, got {settings.batch_size}")
    output = Path(settings.output).expanduser()
    if output.suffix != ".npy" or output.is_dir():
        raise InputError(f"output: expected a file whose name ends in .npy, got {output}")
    return output, output.with_name(f"{output.name}.part")


def _groups(texts: Iterator[tuple[str, str | None]], embedder: Embedder) -> Iterator[list[str]]:
    """The texts between two records of what is done."""
    together = _BATCHES * embedder.batch_size
    return iter(lambda: [text for text, _ in itertools.islice(texts, together)], [])


def _record(output: Path, identity: dict[str, Any], texts: int) -> None:
    write_whole(mark_of(output), json.dumps(identity | {"texts": texts}, indent=2) + "\n")


def _done(settings: EmbedSettings, output: Path, part: Path, identity: dict[str, Any]) -> int:
    """Number of texts that an earlier run has recorded; 0 for a new output, which it creates."""
    if settings.resume and any(path.exists() and path.stat().st_size for path in (output, part)):
        before = check_made_from(output, identity)
        texts = before.get("texts")
        if not isinstance(texts, int) or texts < 0:
            raise InputError(f"resume: expected a number of texts in {mark_of(output)}, got {texts!r}")
        return texts
    part.parent.mkdir(parents=True, exist_ok=True)
    if settings.overwrite or settings.resume:  # a kill may have left an empty one
        part.write_bytes(b"")
        return 0
    for path in (output, part):
        check_new(path)
    create_new(part)
    return 0


def _opened(output: Path, part: Path, shape: tuple[int, int], rows: int) -> BinaryIO:
    """The file for an array of this shape, open to write the rows after the first `rows`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _NUMBER.str, "fortran_order": False, "shape": shape})
    end = header.tell() + rows * shape[1] * _NUMBER.itemsize
    there = part if part.exists() else output  # the run to resume may be complete
    if rows and there.stat().st_size < end:
        raise InputError(f"resume: expected {rows} rows of {shape[1]} numbers in {there}, got fewer")
    if there != part:
        os.replace(there, part)
    file = part.open("r+b")
    file.write(header.getvalue())
    file.seek(end)
    return file
