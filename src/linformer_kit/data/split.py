"""Validation splits by a hash of the text, so independent of the order of documents and of the machine.

Equal documents are always in the same part, so that no validation document is also a training document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from datasets import Dataset, IterableDataset
from jaxtyping import Bool, Shaped
from tqdm import tqdm

from linformer_kit.errors import InputError

Item = TypeVar("Item")

_HASH_BYTES = 8
_ITERATION_DOCUMENTS = 64


def text_rank(text: str, *, seed: int) -> int:
    """Return a pseudo-random 64-bit number that depends on the text and the seed alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, key=str(seed).encode())
    return int.from_bytes(digest.digest(), "big")


def hold_out(documents: Dataset, *, fraction: float, seed: int, name: str) -> tuple[Dataset, Dataset]:
    """Split off the documents of lowest rank.

    Args:
        documents: Data set with a column `text`.
        fraction: Share of the documents to hold out, at least one document.
        seed: Seed of the split.
        name: Name of the documents, for errors.

    Returns:
        Training and validation documents, each in the order of `documents`.

    Raises:
        InputError: All documents are equal.
    """
    bar = tqdm(total=len(documents), desc="Splitting", unit=" documents", delay=2)
    ranks = np.empty(len(documents), dtype=np.uint64)
    for batch in documents.iter(batch_size=_ITERATION_DOCUMENTS):
        ranks[bar.n : bar.n + len(batch["text"])] = [text_rank(text, seed=seed) for text in batch["text"]]
        bar.update(len(batch["text"]))
    bar.close()
    if len(np.unique(ranks)) < 2:
        raise InputError(
            f"{name}: expected at least 2 different documents to hold some out, got 1; give "
            "--validation_file, or smaller documents by --document line or blank_line"
        )
    held_out = lowest(ranks, fraction)
    return documents.select(np.flatnonzero(~held_out)), documents.select(np.flatnonzero(held_out))


def hold_out_texts(
    items: Sequence[Item], texts: Callable[[Item], Iterable[str]], *, fraction: float, seed: int
) -> tuple[list[Item], list[Item]]:
    """Split off the items whose texts have the lowest rank; items with equal texts are in the same part.

    Args:
        items: Items with texts.
        texts: Returns the texts of an item.
        fraction: Share to hold out.
        seed: Seed of the split.

    Returns:
        Training and validation items.

    Raises:
        InputError: All texts are equal.
    """
    ranks = np.array([text_rank("\0".join(texts(item)), seed=seed) for item in items], dtype=np.uint64)
    if len(np.unique(ranks)) < 2:
        raise InputError("validation_fraction: expected two or more different texts to hold some out, got one")
    sides: tuple[list[Item], list[Item]] = ([], [])
    for item, held_out in zip(items, lowest(ranks, fraction).tolist(), strict=True):
        sides[held_out].append(item)
    return sides


def lowest(ranks: Shaped[np.ndarray, " items"], fraction: float) -> Bool[np.ndarray, " items"]:
    """Which ranks are among the lowest `fraction`; at least one and never all, and equal ranks alike.

    Args:
        ranks: At least two different ones.
        fraction: Share of the ranks.
    """
    count = max(1, round(fraction * len(ranks)))
    return ranks <= min(np.sort(ranks)[count - 1], np.unique(ranks)[-2])


def hold_out_of_stream(
    documents: IterableDataset, *, fraction: float, seed: int
) -> tuple[IterableDataset, IterableDataset]:
    """Split a stream of documents: those with a rank below a threshold, about `fraction` of them, are held out.

    Args:
        documents: Stream with a column `text`.
        fraction: Share of the documents to hold out.
        seed: Seed of the split.

    Returns:
        Training and validation documents.
    """
    threshold = int(fraction * 2 ** (8 * _HASH_BYTES))
    below, from_there = (partial(_ranks, side=side, threshold=threshold, seed=seed) for side in ("below", "above"))
    return documents.filter(from_there, input_columns="text"), documents.filter(below, input_columns="text")


def _ranks(text: str, *, side: str, threshold: int, seed: int) -> bool:
    return (text_rank(text, seed=seed) < threshold) == (side == "below")
