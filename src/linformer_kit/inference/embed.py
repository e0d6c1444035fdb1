"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from linformer_kit.data.encoding import Encoder
from linformer_kit.data.examples import TextColumns, read_texts
from linformer_kit.errors import InputError, errors_named, input_errors
from linformer_kit.files.manifest import file_fingerprint
from linformer_kit.files.runs import check_how_to_start
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import (
    check_made_from,
    check_new,
    check_text_column,
    file_of_texts,
    mark_of,
)
from linformer_kit.interop.checkpoints.sentences import check_mean_pooling
from linformer_kit.interop.loading import fingerprint, input_length
from linformer_kit.settings import EmbedSettings

_BATCHES = 32  # forward passes between two records of what is done; texts of like length share a pass


class Embedded(NamedTuple):
    """What was embedded.

    Attributes:
        texts: Number of texts.
        width: Numbers of each embedding.
        longest: Maximum input length in tokens.
        cut: Number of texts that were longer, and truncated, of those of this call.
    """

    texts: int
    width: int
    longest: int
    cut: int


def embed(settings: EmbedSettings) -> Embedded:
    """Embed the texts of a file; write them as a float32 array `[texts, embed]` in NumPy's format.

    Row i is the mean of the hidden states of text i, normalised to length 1. The output appears when it is complete;
    until then it is `OUTPUT.part`, and `resume` continues it after an interruption.

    Raises:
        InputError: for a file that cannot be read (nothing is written), a model whose embedding is not the mean of its
            hidden states, an output that exists, or one to resume that was made from another file or model.
    """
    check_how_to_start(resume=settings.resume, overwrite=settings.overwrite)
    if settings.batch_size < 1:
        raise InputError(f"batch_size: expected 1 or more, got {settings.batch_size}")
    output = Path(settings.output).expanduser()
    if output.suffix != ".npy" or output.is_dir():
        raise InputError(f"output: expected a file whose name ends in .npy, got {output}")
    part = _part_of(output)
    path = file_of_texts(settings.file, (output, part, mark_of(output)))
    check_text_column(settings.text_column, path)
    columns = TextColumns(settings.text_column or "text", None)
    total = sum(1 for _ in read_texts(path, columns))  # rejected before the model is loaded
    check_mean_pooling(settings.model)
    embedder = load_embedder(settings.model, settings, field="model")
    encoder = Encoder(embedder.tokenizer, input_length(embedder.model, embedder.tokenizer, settings.max_length))
    identity = {
        "dtype": settings.dtype,  # before the fingerprint, which differs as well
        "model_fingerprint": fingerprint(embedder.model),
        "file_sha256": file_fingerprint(path),
        "text_column": columns.text,
        "max_length": encoder.max_length,
        "bf16": embedder.bf16,
    }
    shape = (total, embedder.width)
    done = _done(settings, output, identity, shape)
    cut = 0
    if not (settings.resume and output.exists() and not part.exists()):  # else it is complete
        output.parent.mkdir(parents=True, exist_ok=True)
        texts = itertools.islice(read_texts(path, columns), done, None)
        with errors_named(output):
            cut = _write(output, embedder, encoder, texts, (done, shape), identity)
            os.replace(part, output)
    return Embedded(total, embedder.width, encoder.max_length, cut)


def _part_of(output: Path) -> Path:
    """The file that holds the array until it is complete."""
    return output.with_name(f"{output.name}.part")


def _done(settings: EmbedSettings, output: Path, identity: dict[str, Any], shape: tuple[int, int]) -> int:
    """Number of rows that an earlier run has written."""
    part = _part_of(output)
    if not (settings.resume and (part.exists() or output.exists())):
        if not settings.overwrite:
            check_new(output)
            check_new(part)
        return 0
    done = check_made_from(output, identity).get("done")
    if not isinstance(done, int) or not 0 <= done <= shape[0]:
        raise InputError(f"resume: expected done from 0 to {shape[0]} in {mark_of(output)}, got {done!r}")
    if not part.exists() and done < shape[0]:
        raise InputError(f"resume: expected {part}, got no such file")
    if done:
        _check_whole(part if part.exists() else output, shape)
    return done


def _write(
    output: Path,
    embedder: Embedder,
    encoder: Encoder,
    texts: Iterator[tuple[str, str | None]],
    numbers: tuple[int, tuple[int, int]],
    identity: dict[str, Any],
) -> int:
    """Write the rows that are missing; return the number of truncated texts."""
    done, shape = numbers

    def record() -> None:
        write_whole(mark_of(output), json.dumps(identity | {"done": done}, indent=2) + "\n")

    record()  # before the array, so that rows of zeros are never taken for embeddings
    vectors = np.lib.format.open_memmap(_part_of(output), "r+" if done else "w+", np.float32, None if done else shape)
    _allocate(_part_of(output))
    together, cut = _BATCHES * embedder.batch_size, 0
    with tqdm(total=shape[0], initial=done, unit=" texts", dynamic_ncols=True, delay=2) as bar:
        while some := list(itertools.islice(texts, together)):
            encoded = encoder(some)
            cut += sum(text.lost > 0 for text in encoded)
            vectors[done : done + len(some)] = embedder.embed_windows([text.windows[0] for text in encoded])
            vectors.flush()
            done += len(some)
            record()
            bar.update(len(some))
    return cut


def _allocate(path: Path) -> None:
    """Allocate a sparse file's blocks: where the disk is full, writing to its memory map would kill the process."""
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot
                raise


def _check_whole(path: Path, shape: tuple[int, int]) -> None:
    """Check that a file to resume holds an array of this shape."""
    with input_errors(f"resume: expected an array of shape {list(shape)} in {path}"):
        found = np.load(path, mmap_mode="r")
        if found.shape != shape or found.dtype != np.float32:
            raise ValueError(f"{found.dtype} of shape {list(found.shape)}")
