"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from linformer_kit.data.files import find_files
from linformer_kit.data.read import TextColumns, read_inputs
from linformer_kit.data.tokenizer import tokenizer_fingerprint
from linformer_kit.errors import InputError, errors_named
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.chunks import check_mean_pooling, embed_chunks, embed_pieces, tokenise, write_pieces
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


def embed(settings: EmbedSettings) -> tuple[int, int, Embedder]:
    """Embed the texts of files; write them as a float32 array `[rows, width]` in NumPy's format.

    Row i is the embedding of text i, as sentence-transformers computes it from the model's folder; with `chunk_tokens`
    there is a row for each piece, and `OUTPUT.pieces.jsonl` says where it is. The output appears when it is complete;
    until then it is `OUTPUT.part`, and `resume` continues it after an interruption.

    Returns:
        Number of texts, number of rows, and the embedder, which has the number of texts that this call truncated.

    Raises:
        InputError: for files that cannot be read (nothing is written), a model that is no embedder of texts, an output
            that exists, or one to resume that was made from other files or another model.
    """
    output, part, listed = _outputs(settings)
    paths = find_files([settings.file], field="file")
    check_not_read(paths, (output, part, listed, mark_of(output)))
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
        **{name: getattr(settings, name) for name in ("text_column", "document", "chunk_tokens", "pieces")},
        "max_length": embedder.limit,
        "bf16": embedder.bf16,
    }
    run, shape = _embedding(settings, embedder), (sum(counts), embedder.width)
    texts, rows = _done(settings, (output, part, listed), identity)
    if settings.chunk_tokens is not None:
        pieces = write_pieces(listed, embedder, _groups(read(paths), embedder), settings.chunk_tokens)
        shape = (pieces, embedder.width)
    bar = tqdm(total=sum(counts), initial=texts, unit=" texts", dynamic_ncols=True, delay=2)
    with errors_named(output), bar, _opened(output, part, shape, rows) as file:
        _record(output, identity, texts, rows)
        for some in _groups(itertools.islice(read(paths), texts, None), embedder):
            vectors = run(some)
            file.write(vectors.astype(_NUMBER).tobytes())
            file.flush()
            os.fsync(file.fileno())
            texts, rows = texts + len(some), rows + len(vectors)
            _record(output, identity, texts, rows)
            bar.update(len(some))
    os.replace(part, output)
    return sum(counts), shape[0], embedder


def _outputs(settings: EmbedSettings) -> tuple[Path, Path, Path]:
    """The output, what holds it until it is complete, and the file of pieces; checks the settings."""
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    if settings.pieces and settings.chunk_tokens is not None:
        raise InputError("pieces, chunk_tokens: expected at most one of them, got both")
    output = Path(settings.output).expanduser()
    if output.suffix != ".npy" or output.is_dir():
        raise InputError(f"output: expected a file whose name ends in .npy, got {output}")
    return output, output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.pieces.jsonl")


def _embedding(settings: EmbedSettings, embedder: Embedder) -> Callable[[list[str]], np.ndarray]:
    """The function that embeds some texts; checks that an input has room for text."""
    if settings.pieces or settings.chunk_tokens is not None:
        next(tokenise(embedder, [""])).room(embedder.limit)
    if settings.pieces:
        return functools.partial(embed_pieces, embedder)
    if settings.chunk_tokens is None:
        return embedder.embed
    check_mean_pooling(embedder)
    return functools.partial(embed_chunks, embedder, size=settings.chunk_tokens)


def _groups(texts: Iterator[tuple[str, str | None]], embedder: Embedder) -> Iterator[list[str]]:
    """The texts between two records of what is done."""
    together = _BATCHES * embedder.batch_size
    return iter(lambda: [text for text, _ in itertools.islice(texts, together)], [])


def _record(output: Path, identity: dict[str, Any], texts: int, rows: int) -> None:
    write_whole(mark_of(output), json.dumps(identity | {"texts": texts, "rows": rows}, indent=2) + "\n")


def _done(settings: EmbedSettings, paths: tuple[Path, Path, Path], identity: dict[str, Any]) -> tuple[int, int]:
    """Numbers of texts and of rows that an earlier run has recorded; 0 and 0 for a new output, which it creates."""
    output, part, _ = paths
    if settings.resume and any(path.exists() and path.stat().st_size for path in (output, part)):
        before = check_made_from(output, identity)
        texts, rows = before.get("texts"), before.get("rows")
        if not isinstance(texts, int) or not isinstance(rows, int) or min(texts, rows) < 0:
            expected = f"numbers of texts and rows in {mark_of(output)}"
            raise InputError(f"resume: expected {expected}, got {texts!r} and {rows!r}")
        return texts, rows
    part.parent.mkdir(parents=True, exist_ok=True)
    if settings.overwrite or settings.resume:  # a kill may have left an empty one
        part.write_bytes(b"")
        return 0, 0
    for path in (output, part) if settings.chunk_tokens is None else paths:
        check_new(path)
    create_new(part)
    return 0, 0


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
