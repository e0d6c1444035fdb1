"""Inputs of different lengths: passages of whole sentences of documents, or each text as one input.

Passages are pure functions of seed, epoch and index, so a resumed run sees the same inputs as an uninterrupted one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.data.masking import BlockMasker

SHORTEST = 8  # tokens of the shortest passages
_FULL_LENGTH = 0.5  # share of the forward passes with passages of the maximum length
_CHARACTERS = 5  # mean number of characters per token, about
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=\n)")
_MOST_CHARACTERS = 10  # upper estimate of the characters per token

Key = tuple[int, int, int]  # epoch, index of the passage, length in tokens


class Passages(TorchDataset):
    """Passages of documents, with at most the number of tokens in the key; whole sentences where at least one fits.

    Indexed by `(epoch, index, tokens)`, as `passage_keys` gives them.

    Args:
        documents: Data set with a column `text`.
        encoder: Tokenises texts into inputs of at most n tokens.
        seed: Seed of the choice of sentences.
        mask: Masks tokens; None: no masking.
    """

    def __init__(self, documents: Dataset, encoder: Encoder, *, seed: int, mask: BlockMasker | None = None) -> None:
        self._documents = documents
        self._encoder = encoder
        self._mask = mask
        self._seed = seed
        step = encoder.max_length * _CHARACTERS
        self._starts = [
            (number, start)
            for number, text in enumerate(text for batch in documents.iter(64) for text in batch["text"])
            for start in range(0, max(1, len(text) - step // 2), step)
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def document(self, index: int) -> str:
        """The document that the passage of this index is a part of."""
        return self._documents[self._starts[index][0]]["text"]

    def __getitem__(self, key: Key) -> Window:
        epoch, index, tokens = key
        text, start = self.document(index), self._starts[index][1]
        if tokens < self._encoder.max_length:
            random = np.random.default_rng([self._seed, epoch, index])
            text = _sentences(text[start : start + self._encoder.max_length * _CHARACTERS], tokens, random)
        else:
            text = text[start : start + tokens * _MOST_CHARACTERS]
        window = Encoder(self._encoder.tokenizer, tokens)([(text, None)])[0].windows[0]
        return _masked(window, self._mask, epoch, index)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, white space included, blank ones left out."""
    return [sentence for sentence in _BETWEEN_SENTENCES.split(text) if sentence.strip()]


def _sentences(text: str, tokens: int, random: np.random.Generator) -> str:
    """Whole sentences from a random start, about as many as fit in `tokens`, at least one."""
    sentences = split_sentences(text) or [text]
    first = int(random.integers(len(sentences)))
    taken = sentences[first]
    for sentence in sentences[first + 1 :]:
        if len(taken) + len(sentence) > tokens * _CHARACTERS:
            break
        taken += sentence
    return taken.strip()


class Texts(TorchDataset):
    """Each text, or pair of texts, as one input, truncated to the maximum length.

    Indexed by `(epoch, index, tokens)`, where `tokens` is ignored and `epoch` only decides masks.
    """

    def __init__(
        self, texts: Sequence[tuple[str, str | None]], encoder: Encoder, *, mask: BlockMasker | None = None
    ) -> None:
        self._texts = texts
        self._encoder = encoder
        self._mask = mask

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, key: Key) -> Window:
        epoch, index, _ = key
        return _masked(self._encoder([self._texts[index]])[0].windows[0], self._mask, epoch, index)


def _masked(window: Window, mask: BlockMasker | None, epoch: int, index: int) -> Window:
    if mask is None:
        return window
    hidden = mask(np.array(window["input_ids"]), epoch=epoch, index=index)
    return {**window, "input_ids": hidden["input_ids"].tolist()}


def passage_keys(inputs: int, *, longest: int, together: int, seed: int, epoch: int) -> list[Key]:
    """Random order of keys in which all inputs of one forward pass, over all processes, have the same length.

    About half of the passes have full length. The other lengths are log-uniform, so that a model also sees single
    sentences. A pure function of seed and epoch; an incomplete last pass is dropped.

    Args:
        inputs: Number of inputs.
        longest: n, the maximum length in tokens.
        together: Inputs of one forward pass over all processes.
        seed: Seed of the order.
        epoch: Number of the epoch, from 0.
    """
    random = np.random.default_rng([seed, epoch])
    whole = inputs // together * together
    order = random.permutation(inputs)[:whole]
    lengths = drawn_lengths(whole // together, longest, random)
    return [(epoch, int(index), int(lengths[number // together])) for number, index in enumerate(order)]


def drawn_lengths(count: int, longest: int, random: np.random.Generator) -> np.ndarray:
    """Random lengths in tokens, int `[count]`: half of them `longest`, the others log-uniform."""
    low, high = math.log(min(SHORTEST, longest)), math.log(longest)
    lengths = np.exp(random.uniform(low, high, count)).round().astype(int)
    return np.where(random.random(count) < _FULL_LENGTH, longest, lengths)
