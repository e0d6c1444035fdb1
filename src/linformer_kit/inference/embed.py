"""Embed any number of texts, in order, in one array on disk."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from linformer_kit.data.encoding import Encoder
from linformer_kit.data.examples import TextColumns, read_texts
from linformer_kit.data.tables import READERS
from linformer_kit.errors import InputError, errors_named, input_errors
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.files.writing import write_whole
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import check_how_to_start, check_made_from, check_new, file_of_texts, mark_of
from linformer_kit.interop.loading import fingerprint
from linformer_kit.settings import EmbedSettings, is_local_path

_BATCHES = 32  # forward passes between two records of what is done; texts of like length share a pass
_POOLING = Path("1_Pooling") / "config.json"  # of sentence-transformers


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
    if output.suffix != ".npy":
        raise InputError(f"output: expected a name that ends in .npy, got {output}")
    part = output.with_name(f"{output.name}.part")
    path = file_of_texts(settings.file, (output, part, mark_of(output)))
    columns = _columns(settings, path)
    total = sum(1 for _ in read_texts(path, columns))  # rejected before the model is loaded
    _check_pooling(settings.model)
    embedder = load_embedder(settings.model, settings, field="model")
    longest = _longest(embedder, settings)
    identity = {
        "model_fingerprint": fingerprint(embedder.model),
        "file_sha256": file_fingerprint(path),
        "text_column": columns.text,
        "max_length": longest,
    }
    done = 0
    if settings.resume and (part.exists() or output.exists()):
        done = int(check_made_from(output, identity)["done"])
        _check_whole(output if done == total else part, (total, embedder.width))
    elif not settings.overwrite:
        check_new(output)
        check_new(part)
    output.parent.mkdir(parents=True, exist_ok=True)
    cut = 0
    if done < total:
        with errors_named(output):
            cut = _write(part, output, embedder, (path, columns), (done, total, longest), identity)
            os.replace(part, output)
    return Embedded(total, embedder.width, longest, cut)


def _write(
    part: Path,
    output: Path,
    embedder: Embedder,
    source: tuple[Path, TextColumns],
    numbers: tuple[int, int, int],
    identity: dict[str, Any],
) -> int:
    """Write the rows that are missing; return the number of truncated texts."""
    done, total, longest = numbers
    mode, shape = ("r+", None) if done else ("w+", (total, embedder.width))
    vectors = np.lib.format.open_memmap(part, mode=mode, dtype=np.float32, shape=shape)
    encoder, together, cut = Encoder(embedder.tokenizer, longest), _BATCHES * embedder.batch_size, 0
    texts = itertools.islice(read_texts(*source), done, None)
    write_whole(mark_of(output), json.dumps(identity | {"done": done}, indent=2) + "\n")
    with tqdm(total=total, initial=done, unit=" texts", dynamic_ncols=True, delay=2) as bar:
        while some := list(itertools.islice(texts, together)):
            encoded = encoder(some)
            cut += sum(text.lost > 0 for text in encoded)
            found = embedder.embed_windows([text.windows[0] for text in encoded])
            vectors[done : done + len(some)] = found
            vectors.flush()
            done += len(some)
            write_whole(mark_of(output), json.dumps(identity | {"done": done}, indent=2) + "\n")
            bar.update(len(some))
    return cut


def _check_whole(path: Path, shape: tuple[int, int]) -> None:
    """Check that a file to resume holds an array of this shape."""
    with input_errors(f"resume: expected an array of shape {list(shape)} in {path}"):
        found = np.load(path, mmap_mode="r")
        if found.shape != shape or found.dtype != np.float32:
            raise ValueError(f"{found.dtype} of shape {list(found.shape)}")


def _columns(settings: EmbedSettings, path: Path) -> TextColumns:
    if path.suffix.lower() not in READERS and settings.text_column is not None:
        raise InputError(f"text_column: expected none for lines of text, got {settings.text_column!r}")
    return TextColumns(settings.text_column or "text", None)


def _longest(embedder: Embedder, settings: EmbedSettings) -> int:
    """Maximum input length in tokens."""
    if settings.max_length is None:
        return embedder.longest
    if settings.max_length > embedder.longest:
        raise InputError(
            f"max_length: expected at most {embedder.longest} (the limit of the model), got {settings.max_length}"
        )
    return settings.max_length


def _check_pooling(model: str) -> None:
    """Reject a folder of sentence-transformers whose embedding is not the mean of the hidden states."""
    path = Path(model).expanduser() / _POOLING
    if is_local_path(model) and path.is_file():
        chosen = [name for name, value in read_json(path).items() if name.startswith("pooling_mode_") and value is True]
        if chosen not in ([], ["pooling_mode_mean_tokens"]):
            raise InputError(f"model: expected pooling_mode_mean_tokens in {path}, got {', '.join(chosen)}")
