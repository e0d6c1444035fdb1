"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import numpy as np

from linformer_cli.errors import InputError
from linformer_cli.settings import EmbedSettings
from linformer_kit.data.read import Text, TextColumns, read_inputs
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.inference.chunks import check_pieces, embed_chunks, embed_pieces, write_pieces
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import find_texts, write_rows

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
    size = settings.chunk_tokens
    if settings.pieces and size is not None:
        raise InputError("pieces, chunk_tokens: expected at most one of them, got both")
    output = Path(settings.output)
    if output.suffix != ".npy":
        raise InputError(f"output: expected a file whose name ends in .npy, got {output}")
    pieces = output.with_name(f"{output.name}.pieces.jsonl")
    paths = find_texts(settings, pieces)
    columns = TextColumns(settings.text_column or "text")
    read = functools.partial(read_inputs, paths, columns, document=settings.document)
    total = sum(1 for _ in read())  # rejects unreadable files before the model is loaded
    embedder = load_embedder(settings.model, batch_size=settings.batch_size, dtype=settings.dtype)
    embedder.truncate(settings.max_length)
    if settings.pieces or size is not None:
        check_pieces(embedder, chunks=size is not None)
    identity = {
        "dtype": settings.dtype,  # before the fingerprint, which differs as well
        **embedder.identity(),
        "files": [[path.name, file_fingerprint(path)] for path in paths],
        **{name: getattr(settings, name) for name in ("text_column", "document", "chunk_tokens", "pieces")},
    }

    def rows(group: list[Text], _: int) -> bytes:
        texts = [text for text, _ in group]
        if size is not None:
            vectors = embed_chunks(embedder, texts, size)
        else:
            vectors = embed_pieces(embedder, texts) if settings.pieces else embedder.embed(texts)
        return vectors.astype(_NUMBER).tobytes()

    def header() -> bytes:
        if size is None:
            pieces.unlink(missing_ok=True)  # of an output that is overwritten
            return _header((total, embedder.width))
        return _header((write_pieces(pieces, embedder, read(), size), embedder.width))

    write_rows(settings, output, identity, read(), total, rows, header=header)
    return total, len(np.load(output, mmap_mode="r")), embedder


def _header(shape: tuple[int, int]) -> bytes:
    """The start of a file in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _NUMBER.str, "fortran_order": False, "shape": shape})
    return header.getvalue()
