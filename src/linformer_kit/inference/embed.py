"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import EmbedSettings
from linformer_kit.data.files import find_files
from linformer_kit.data.read import TextColumns, read_inputs
from linformer_kit.data.tokenizer import tokenizer_fingerprint
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.inference.batches import together
from linformer_kit.inference.chunks import check_mean_pooling, embed_chunks, embed_pieces, tokenise, write_pieces
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import GrowingFile, check_new, check_not_read, check_text_column
from linformer_kit.interop.loading import fingerprint

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
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    if settings.pieces and settings.chunk_tokens is not None:
        raise InputError("pieces, chunk_tokens: expected at most one of them, got both")
    output = Path(settings.output)
    if output.suffix != ".npy" or output.is_dir():
        raise InputError(f"output: expected a file whose name ends in .npy, got {output}")
    pieces = output.with_name(f"{output.name}.pieces.jsonl")
    if not (settings.resume or settings.overwrite):
        check_new(pieces)
    paths = find_files([settings.file], field="file")
    check_not_read(paths, output, pieces)
    check_text_column(settings.text_column, *paths)
    columns = TextColumns(settings.text_column or "text")
    read = functools.partial(read_inputs, columns=columns, document=settings.document)
    counts = [sum(1 for _ in read([path])) for path in paths]  # rejects unreadable files before the model is loaded
    total = sum(counts)
    embedder = load_embedder(settings.model, settings, field="model")
    embedder.truncate(settings.max_length)
    run = _embedding(settings, embedder)
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
    with GrowingFile(output, identity, resume=settings.resume, overwrite=settings.overwrite) as file:
        if settings.chunk_tokens is None:
            pieces.unlink(missing_ok=True)  # of an output that is overwritten
        rows = total
        if settings.chunk_tokens is not None:
            rows = write_pieces(pieces, embedder, together(read(paths)), settings.chunk_tokens)
        if not file.bytes:
            file.write(_header((rows, embedder.width)), texts=0)
        texts = itertools.islice(read(paths), file.texts, None)
        with tqdm(total=total, initial=file.texts, unit=" texts", dynamic_ncols=True, delay=2) as bar:
            for group in together(texts):
                file.write(run([text for text, _ in group]).astype(_NUMBER).tobytes(), len(group))
                bar.update(len(group))
    return total, rows, embedder


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


def _header(shape: tuple[int, int]) -> bytes:
    """The start of a file in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _NUMBER.str, "fortran_order": False, "shape": shape})
    return header.getvalue()
