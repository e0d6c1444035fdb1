"""Corpora: documents for training and validation, from files, the hub or the Python standard library."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow
from datasets import Dataset, Features
from jaxtyping import Int
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import CachedTextSettings, CorpusSettings
from linformer_kit.data.files import cache_folder, cached_dataset, text_files
from linformer_kit.data.read import check_columns, load_hub, read_documents, text_groups
from linformer_kit.files.manifest import fingerprint

logger = logging.getLogger(__name__)

_SCHEMA = pyarrow.schema({"text": pyarrow.large_string()})  # `string` is limited to 2 GiB per batch
_BATCH_SIZE = 64  # documents
# Where a text may be cut, the best first: ends of paragraphs, lines, sentences and words.
_BOUNDARIES = tuple(map(re.compile, (r"\n\s*\n", r"\n", r"(?<=[.!?])\s+", r"\s+")))


@dataclass(frozen=True)
class Side:
    """Documents to learn from, or those for validation."""

    documents: Dataset  # memory-mapped, with the single column `text`
    fingerprint: str  # hash of the documents in their order, wherever they come from


@dataclass(frozen=True)
class Corpus:
    """Documents for training and validation."""

    train: Side
    validation: Side
    description: str  # source and numbers of documents in one line, for logs and reports


def load_corpus(settings: CachedTextSettings, *, seed: int) -> Corpus:
    """Find, check, read and split the text of a corpus; files are read once, into a cache.

    `seed` decides which texts are held out, where the settings name no validation texts.

    Raises:
        InputError: The settings contradict each other, or the text is missing or not readable.
    """
    validation: Dataset | None = None
    if isinstance(settings, CorpusSettings) and (settings.dataset_name or settings.dataset_config_name):
        if settings.train_file or not settings.dataset_name:
            raise InputError(
                "expected one of train_file and dataset_name, and dataset_config_name only with the latter"
            )
        name = settings.dataset_name
        train, validation = _hub_documents(settings, name)
    else:
        name, train = _file_documents(settings, "train_file")
    if settings.validation_file:
        _, validation = _file_documents(settings, "validation_file")
    fraction = settings.validation_fraction
    if validation is None and _is_one_text(train):
        train, validation = _cut(train[0]["text"], fraction=fraction, name=name)
        description = f"one document, its last {len(validation[0]['text']):,} characters for validation"
    else:
        if validation is None:
            texts = tqdm(texts_of(train), total=len(train), desc="Splitting", unit=" documents", delay=2)
            train, validation = (train.select(part) for part in split(texts, fraction=fraction, seed=seed, name=name))
        else:
            texts = tqdm(texts_of(train), total=len(train), desc="Comparing", unit=" documents", delay=2)
            warn_of_learnt(texts, texts_of(validation))
        description = f"{len(train):,} documents to learn from, {len(validation):,} for validation"
    return Corpus(_side(train), _side(validation), f"{name}: {description}")


def _side(documents: Dataset) -> Side:
    texts = tqdm(texts_of(documents), total=len(documents), desc="Hashing text", unit=" documents", delay=2)
    return Side(documents, fingerprint(iter(texts)))


def _is_one_text(documents: Dataset) -> bool:
    first = documents[0]["text"]
    return all(text == first for text in texts_of(documents))


def _cut(text: str, *, fraction: float, name: str) -> tuple[Dataset, Dataset]:
    """The start of a text to learn from, and about this fraction of it, its end, for validation.

    The cut is between paragraphs where there is such a place near by, else between lines, sentences or words.
    """
    place = round(len(text) * (1 - fraction))
    reach = min(place, len(text) - place) // 2
    for boundary in _BOUNDARIES:
        if ends := [match.end() for match in boundary.finditer(text, place - reach, place + reach)]:
            place = min(ends, key=lambda end: abs(end - place))
            break
    parts = text[:place], text[place:]
    if not all(map(_is_not_blank, parts)):
        expected = "more than one document, or one whose end can be held out"
        raise InputError(f"{name}: expected {expected}, got {text!r:.40}; give --validation_file")
    start, end = (Dataset.from_dict({"text": [part]}, Features.from_arrow_schema(_SCHEMA)) for part in parts)
    return start, end


def texts_of(documents: Dataset) -> Iterator[str]:
    """The texts of documents in memory or on disk, read in batches."""
    return (text for batch in documents.iter(batch_size=_BATCH_SIZE) for text in batch["text"])


def warn_of_learnt(train: Iterable[Hashable], validation: Iterable[Hashable], *, sources: Sequence[str] = ()) -> None:
    """Log how many validation texts are also training texts; the first by its source, if they are given."""
    hashes = list(map(hash, validation))
    learnt = set(hashes).intersection(map(hash, train))
    if places := [place for place, each in enumerate(hashes) if each in learnt]:
        first = f"; the first: {sources[places[0]]}" if sources else ""
        logger.warning(
            f"validation: {len(places):,} of {len(hashes):,} texts are also in the training texts, "
            f"which makes the results too good{first}"
        )


def split(
    texts: Iterable[str],
    *,
    fraction: float,
    seed: int,
    name: str,
    keep: Sequence[Hashable] = (),
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Numbers of the texts to learn from and of those to hold out: at least one, and equal texts in the same part.

    Different texts are held out in the order of their hashes, each if it fits into the share that is asked for. So the
    choice depends on neither the order of the texts nor the machine, and a frequent text is learnt.

    Args:
        texts: All texts.
        fraction: Share of the texts to hold out.
        seed: Seed of the hashes.
        name: Name of the texts, for messages.
        keep: The class of each text, or a tuple of its classes. A text of each class is kept to learn from; a warning
            names the classes without one, where every text is the only one of a class.

    Raises:
        InputError: All texts are equal.
    """
    digests = (hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode()) for text in texts)
    ranks = np.fromiter((int.from_bytes(digest.digest(), "big") for digest in digests), np.uint64)
    different, places, counts = np.unique(ranks, return_inverse=True, return_counts=True)
    if len(different) < 2:
        raise InputError(f"{name}: expected at least 2 different texts to hold some out, got 1; give --validation_file")
    classes: defaultdict[int, set[Hashable]] = defaultdict(set)
    for place, value in zip(places.tolist(), keep, strict=False):
        classes[place].update(value if isinstance(value, tuple) else (value,))
    learnt = Counter(value for values in classes.values() for value in values)  # different texts of each class

    def is_last(place: int) -> bool:
        return any(learnt[value] < 2 for value in classes.get(place, ()))

    missing = min(max(1, round(fraction * len(ranks))), len(ranks) - 1)
    held = []
    for place in np.flatnonzero(counts <= missing).tolist():
        if counts[place] <= missing and not is_last(place):
            held.append(place)
            learnt.subtract(classes.get(place, ()))
            missing -= int(counts[place])
    if not held:  # every text is too frequent or the last of a class
        held = [min(range(len(different)), key=lambda place: (is_last(place), counts[place]))]
        if lost := ", ".join(repr(value) for value in classes.get(held[0], ()) if learnt[value] < 2):
            logger.warning(f"{name}: the only text of {lost} is held out; give --validation_file to learn from it")
    is_held = np.isin(places, held)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _hub_documents(settings: CorpusSettings, name: str) -> tuple[Dataset, Dataset | None]:
    """Training documents, and validation documents; None without such a split."""
    splits = load_hub(name, settings.dataset_config_name, "train")
    sides = {
        side: _text_rows(splits[side], settings.text_column, source=f"dataset_name {name} {side}")
        for side in ("train", "validation")
        if side in splits
    }
    return sides["train"], sides.get("validation")


def _text_rows(rows: Dataset, column: str, *, source: str) -> Dataset:
    """Non-blank documents with the single column `text`."""
    check_columns(source, {"text_column": column}, rows.column_names)
    if getattr(rows.features[column], "dtype", None) not in ("string", "large_string"):
        raise InputError(f"{source}: column {column!r} is {rows.features[column]}; expected strings")
    rows = rows.with_format(None).select_columns([column])
    if column != "text":
        rows = rows.rename_column(column, "text")
    # Not from the cache of `datasets`, which takes a folder that was saved again for the one before.
    rows = rows.filter(_is_not_blank, input_columns="text", load_from_cache_file=False, keep_in_memory=True)
    return _not_empty(rows, source)


def _is_not_blank(text: str | None) -> bool:
    return bool(text and text.strip())


def _not_empty(documents: Dataset, source: str) -> Dataset:
    if not len(documents):
        raise InputError(f"{source}: expected documents with text, got none")
    return documents


def _file_documents(settings: CachedTextSettings, field: str) -> tuple[str, Dataset]:
    """Name and documents of the files of a setting; without any, of Python's standard library."""
    patterns = getattr(settings, field)
    files = text_files(patterns, field=field, document=settings.document, column=settings.text_column)
    path = cache_folder() / "documents" / f"{files.fingerprint()}.arrow"

    def batches() -> Iterator[pyarrow.RecordBatch]:
        documents = read_documents(files.paths, document=files.document, column=files.column)
        for batch in text_groups(tqdm(documents, desc="Reading", unit=" documents", delay=2), count=_BATCH_SIZE):
            yield pyarrow.record_batch({"text": batch}, _SCHEMA)

    return files.name, _not_empty(cached_dataset(path, _SCHEMA, batches), files.name)
