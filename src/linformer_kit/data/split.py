"""Validation splits by a hash of the text, so independent of the order of documents and of the machine.

Equal texts are always in the same part, so that no validation text is also a training text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool

from linformer_cli.errors import InputError


def text_rank(text: str, *, seed: int) -> int:
    """A pseudo-random 64-bit number that depends on the text and the seed alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode())
    return int.from_bytes(digest.digest(), "big")


def held_out(
    texts: Iterable[str], *, fraction: float, seed: int, name: str, advice: str = ""
) -> Bool[np.ndarray, " texts"]:
    """Which texts to hold out: those of lowest rank, at least one and never all, and equal texts alike.

    Raises:
        InputError: All texts are equal; the message has `name` and ends with `advice`.
    """
    ranks = np.fromiter((text_rank(text, seed=seed) for text in texts), np.uint64)
    different = np.unique(ranks)
    if len(different) < 2:
        raise InputError(
            f"{name}: expected at least 2 different texts to hold some out, got 1; give --validation_file{advice}"
        )
    count = max(1, round(fraction * len(ranks)))
    return ranks <= min(np.sort(ranks)[count - 1], different[-2])
