"""Corpora: documents for training and validation, from files, the hub or the Python standard library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset, Features, IterableDataset
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import CorpusSettings, names_only
from linformer_kit.data.cached import cache_folder, cached_dataset, content_hash
from linformer_kit.data.files import TextFiles, find_files, standard_library
from linformer_kit.data.read import Documents, check_columns, load_hub, read_documents
from linformer_kit.data.split import held_out, hold_out_of_stream

# Enough for a stable validation loss, and few enough to keep in memory.
STREAM_VALIDATION_DOCUMENTS = 1000
# Size of the shuffle buffer of a stream, in documents; small, since a document may be a whole book.
STREAM_SHUFFLE_DOCUMENTS = 256

_SCHEMA = pyarrow.schema({"text": pyarrow.large_string()})  # `string` is limited to 2 GiB per batch
_TOGETHER = 64  # documents in a batch


@dataclass(frozen=True)
class Corpus:
    """Documents for training and validation."""

    train: Documents  # one column, `text`, and one row per document
    validation: Documents
    description: str  # source and numbers of documents in one line, for logs and reports
    fingerprint: str  # hash of the texts, the document rule and the validation split
    streaming: bool  # whether the documents are read during training


def load_corpus(settings: CorpusSettings, *, seed: int) -> Corpus:
    """Find, check, read and split the text of a corpus.

    Files are read once into a memory-mapped cache. With `streaming`, files are read once to check them, and documents
    are read again during training, with a shuffle buffer of `STREAM_SHUFFLE_DOCUMENTS`; at most
    `STREAM_VALIDATION_DOCUMENTS` are used for validation.

    Args:
        settings: Source of the text and document rule.
        seed: Seed of the validation split and of the order of a stream.

    Raises:
        InputError: The settings contradict each other, or the text is missing or not readable.
    """
    if settings.train_file and settings.dataset_name:
        raise InputError("train_file and dataset_name are both given; expected one of them")
    if settings.dataset_config_name and not settings.dataset_name:
        raise InputError("dataset_config_name is given without dataset_name; expected both or neither")
    streaming = settings.dataset_name is not None if settings.streaming is None else settings.streaming
    validation: Documents | None = None
    if settings.dataset_name:
        name = settings.dataset_name
        train, validation, source = _of_hub(settings, name, streaming)
    else:
        files = _text_files(settings, "train_file") if settings.train_file else standard_library()
        name, source = files.name, [files.fingerprint()]
        train = _of_files(files, source[0], settings, streaming)
    choice: Any
    if settings.validation_file:
        files = _text_files(settings, "validation_file")
        choice = files.fingerprint()
        validation = _of_files(files, choice, settings, streaming)
    elif validation is not None:
        choice = "validation split"
    else:
        choice = [settings.validation_fraction, seed]
        train, validation = _split(train, name, fraction=settings.validation_fraction, seed=seed)
    for documents, side in ((train, "training"), (validation, "validation")):
        if next(iter(documents), None) is None:
            advice = "; give --validation_file, or another --validation_fraction" if streaming else ""
            raise InputError(f"{name}: expected documents for {side}, got none{advice}")
    if streaming:
        train = train.shuffle(seed=seed, buffer_size=STREAM_SHUFFLE_DOCUMENTS)
        validation = validation.take(STREAM_VALIDATION_DOCUMENTS)
        counts = "streamed"
    else:
        counts = f"{len(train)} documents to learn from, {len(validation)} for validation"
    return Corpus(train, validation, f"{name}: {counts}", content_hash([source, choice]), streaming)


def texts_of(documents: Dataset) -> Iterator[str]:
    """The texts of documents in memory or on disk, read in batches."""
    return (text for batch in documents.iter(batch_size=_TOGETHER) for text in batch["text"])


def _split(documents: Documents, name: str, *, fraction: float, seed: int) -> tuple[Documents, Documents]:
    if isinstance(documents, IterableDataset):
        return hold_out_of_stream(documents, fraction=fraction, seed=seed)
    texts = tqdm(texts_of(documents), total=len(documents), desc="Splitting", unit=" documents", delay=2)
    advice = ", or smaller documents by --document line or blank_line"
    held = held_out(texts, fraction=fraction, seed=seed, name=name, advice=advice)
    return documents.select(np.flatnonzero(~held)), documents.select(np.flatnonzero(held))


def _of_hub(settings: CorpusSettings, name: str, streaming: bool) -> tuple[Documents, Documents | None, list[Any]]:
    """Training documents, validation documents (None without such a split), and what the source depends on."""
    splits = load_hub(name, settings.dataset_config_name, streaming=streaming)
    if "train" not in splits:
        raise InputError(f"dataset_name {name}: expected a split 'train', got {', '.join(map(repr, splits))}")
    column = settings.text_column
    train = _text_rows(splits["train"], column, source=f"dataset_name {name}")
    validation = None
    if "validation" in splits:
        validation = _text_rows(splits["validation"], column, source=f"dataset_name {name} validation")
    version = None if streaming else train._fingerprint
    return train, validation, [name, settings.dataset_config_name, column, version]


def _text_rows(rows: Documents, column: str, *, source: str) -> Documents:
    """Non-blank documents with the single column `text`."""
    # A stream without a declared schema has column names only in its rows.
    check_columns(source, {"text_column": column}, rows.column_names or list(next(iter(rows), {})))
    declared = rows.features[column] if rows.features else None
    if declared is not None and getattr(declared, "dtype", None) not in ("string", "large_string"):
        raise InputError(f"{source}: column {column!r} is {declared}; expected strings")
    rows = rows.select_columns([column])
    if column != "text":
        rows = rows.rename_column(column, "text")
    return rows.filter(_is_not_blank, input_columns="text")


def _is_not_blank(text: str | None) -> bool:
    return bool(text and text.strip())


def _text_files(settings: CorpusSettings, field: str) -> TextFiles:
    patterns = getattr(settings, field)
    paths = find_files(patterns, field=field)
    return TextFiles(" ".join(names_only(patterns)), paths, document=settings.document, column=settings.text_column)


def _of_files(files: TextFiles, fingerprint: str, settings: CorpusSettings, streaming: bool) -> Documents:
    if streaming:
        for _ in _batches(files):
            pass  # find unreadable text now, not after hours of training
        arguments = {"paths": list(files.paths), "document": files.document, "column": files.column}
        # `datasets` splits arguments that are lists among data loader workers, here file by file.
        return IterableDataset.from_generator(_rows, features=Features.from_arrow_schema(_SCHEMA), gen_kwargs=arguments)
    path = cache_folder(settings.cache_dir) / "documents" / f"{fingerprint}.arrow"
    return cached_dataset(path, _SCHEMA, lambda: _batches(files))


def _rows(paths: list[Path], document: str, column: str) -> Iterator[dict[str, str]]:
    return ({"text": text} for text in read_documents(paths, document=document, column=column))


def _batches(files: TextFiles) -> Iterator[pyarrow.RecordBatch]:
    """All documents of files, in batches.

    Raises:
        InputError: for text that cannot be read, and if there is none.
    """
    documents = read_documents(files.paths, document=files.document, column=files.column)
    bar = tqdm(documents, desc="Reading", unit=" documents", delay=2)
    rest = iter(bar)
    for batch in iter(lambda: list(islice(rest, _TOGETHER)), []):
        yield pyarrow.record_batch({"text": batch}, _SCHEMA)
    if bar.n == 0:
        raise InputError(f"{files.name}: expected documents with text, got none in {len(files.paths)} files")
