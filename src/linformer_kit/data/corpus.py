"""Corpora: documents for training and validation, from files, the hub or the Python standard library."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from tqdm import tqdm

from linformer_kit.data.cached import cache_folder, make_cache_folder
from linformer_kit.data.files import TextFiles, find_files, standard_library
from linformer_kit.data.hub import Documents, load_hub
from linformer_kit.data.read import read_documents
from linformer_kit.data.split import hold_out, hold_out_of_stream
from linformer_kit.errors import InputError, errors_named
from linformer_kit.settings import CorpusSettings, names_only

# Enough for a stable validation loss, and few enough to keep in memory.
STREAM_VALIDATION_DOCUMENTS = 1000
# Size of the shuffle buffer of a stream, in documents; small, since a document may be a whole book.
STREAM_SHUFFLE_DOCUMENTS = 256

_FEATURES = Features({"text": Value("large_string")})  # `string` is limited to 2 GiB per batch
_WRITTEN_TOGETHER = 200


@dataclass(frozen=True)
class Corpus:
    """Documents for training and validation.

    Attributes:
        train: Training documents; one column, `text`, and one row per document.
        validation: Validation documents, with the same column.
        description: Source and numbers of documents in one line, for logs and reports.
        fingerprint: Hexadecimal hash of the contents of the files, the document rule and the validation split.
        streaming: Whether the documents are read during training.
    """

    train: Documents
    validation: Documents
    description: str
    fingerprint: str
    streaming: bool


def load_corpus(settings: CorpusSettings, *, seed: int) -> Corpus:
    """Find, check, read and split the text of a corpus.

    Files are read once into a memory-mapped cache. With `streaming`, files are read once to check them, and documents
    are read again during training, with a shuffle buffer of `STREAM_SHUFFLE_DOCUMENTS`; at most
    `STREAM_VALIDATION_DOCUMENTS` are used for validation.

    Args:
        settings: Source of the text and document rule.
        seed: Seed of the validation split and of the order of a stream.

    Returns:
        The corpus, with at least one training and one validation document.

    Raises:
        InputError: The settings contradict each other, or the text is missing or not readable.
    """
    _check_settings(settings)
    streaming = settings.dataset_name is not None if settings.streaming is None else settings.streaming
    with _without_progress_bars():
        name, train, validation, source = _load_source(settings, streaming)
        if settings.validation_file:
            files = _text_files(settings.validation_file, settings, field="validation_file")
            choice: Any = files.fingerprint()
            validation = _load_files(files, choice, settings, streaming)
        elif validation is not None:
            choice = "validation split"
        else:
            choice = [settings.validation_fraction, seed]
            split: dict[str, Any] = {"fraction": settings.validation_fraction, "seed": seed}
            train, validation = hold_out_of_stream(train, **split) if streaming else hold_out(train, name=name, **split)
        _check_both_sides(train, validation, name, streaming)
        if streaming:
            train = train.shuffle(seed=seed, buffer_size=STREAM_SHUFFLE_DOCUMENTS)
            validation = validation.take(STREAM_VALIDATION_DOCUMENTS)
    counts = "streamed" if streaming else f"{len(train)} documents to learn from, {len(validation)} for validation"
    fingerprint = hashlib.sha256(json.dumps([source, choice]).encode()).hexdigest()
    return Corpus(train, validation, f"{name}: {counts}", fingerprint, streaming)


def _check_settings(settings: CorpusSettings) -> None:
    if settings.train_file and settings.dataset_name:
        raise InputError("train_file and dataset_name are both given; expected one of them")
    if settings.dataset_config_name and not settings.dataset_name:
        raise InputError("dataset_config_name is given without dataset_name; expected both or neither")


def _load_source(settings: CorpusSettings, streaming: bool) -> tuple[str, Documents, Documents | None, list]:
    """Return name, training documents, validation documents (None if the source has none), and a fingerprint."""
    if settings.dataset_name:
        train, validation = load_hub(settings, streaming=streaming)
        version = None if streaming else train._fingerprint
        source = [settings.dataset_name, settings.dataset_config_name, settings.text_column, version]
        return settings.dataset_name, train, validation, source
    if settings.train_file:
        files = _text_files(settings.train_file, settings, field="train_file")
    else:
        files = standard_library()
    fingerprint = files.fingerprint()
    return files.name, _load_files(files, fingerprint, settings, streaming), None, [fingerprint]


def _text_files(patterns: list[str], settings: CorpusSettings, *, field: str) -> TextFiles:
    paths = find_files(patterns, field=field)
    return TextFiles(" ".join(names_only(patterns)), paths, document=settings.document, column=settings.text_column)


def _load_files(files: TextFiles, fingerprint: str, settings: CorpusSettings, streaming: bool) -> Documents:
    if streaming:
        for _ in _read_all(files):
            pass  # find unreadable text now, not after hours of training
        arguments = {"paths": list(files.paths), "document": files.document, "column": files.column}
        # `datasets` splits arguments that are lists among data loader workers, here file by file.
        return IterableDataset.from_generator(_rows, features=_FEATURES, gen_kwargs=arguments)
    folder = cache_folder(settings.cache_dir) / "documents" / fingerprint
    make_cache_folder(folder)
    with errors_named(folder):
        try:
            return _cache_documents(files, folder)
        except pyarrow.ArrowException:
            shutil.rmtree(folder)  # truncated or damaged: make it again
            return _cache_documents(files, folder)


def _cache_documents(files: TextFiles, folder: Path) -> Dataset:
    try:
        return Dataset.from_generator(
            _read_all,
            features=_FEATURES,
            gen_kwargs={"files": files},
            cache_dir=str(folder),
            fingerprint=folder.name,
            writer_batch_size=_WRITTEN_TOGETHER,
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, (InputError, OSError)):
            raise error.__cause__ from None
        raise


def _read_all(files: TextFiles) -> Iterator[dict[str, str]]:
    rows = tqdm(_rows(files.paths, files.document, files.column), desc="Reading", unit=" documents", delay=2)
    yield from rows
    if rows.n == 0:
        raise InputError(f"{files.name}: expected documents with text, got none in {len(files.paths)} files")


def _rows(paths: list[Path] | tuple[Path, ...], document: str, column: str) -> Iterator[dict[str, str]]:
    return ({"text": text} for text in read_documents(paths, document=document, column=column))


def _check_both_sides(train: Documents, validation: Documents, name: str, streaming: bool) -> None:
    for documents, side in ((train, "training"), (validation, "validation")):
        if next(iter(documents), None) is None:
            advice = "; give --validation_file, or another --validation_fraction" if streaming else ""
            raise InputError(f"{name}: expected documents for {side}, got none{advice}")


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    disabled_before = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not disabled_before:
            enable_progress_bars()
