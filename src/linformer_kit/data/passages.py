"""Texts of a distillation as inputs: passages of whole sentences of documents, of all lengths, or each text as one.

Passages are pure functions of seed, epoch and index, so a resumed run sees the same inputs as an uninterrupted one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from linformer_cli.errors import InputError
from linformer_cli.settings import DistillSettings, names_only
from linformer_kit.data.corpus import load_corpus, split, texts_of, warn_of_learnt
from linformer_kit.data.files import find_files
from linformer_kit.data.packing import BlockMasker
from linformer_kit.data.read import Text, TextColumns, read_inputs
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.files.manifest import fingerprint

_SHORTEST = 8  # tokens of the shortest passages
_FULL_LENGTH = 0.5  # share of the updates with passages of the maximum length
_CHARACTERS = 5  # mean number of characters per token, about
_MAX_CHARACTERS = 10  # upper estimate of the characters per token
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=\n)")

Key = tuple[int, int, int]  # epoch, index of the passage, length in tokens


@dataclass(frozen=True)
class Inputs:
    """Inputs of a distillation."""

    train: Texts  # indexed by the keys of `passage_keys`
    validation: list[Window]  # the longest first
    description: str  # source and numbers of texts in one line, for logs and reports
    fingerprint: str  # hash of the texts and of how they are split


def load_inputs(settings: DistillSettings, encoder: Encoder, *, packing: bool, masked: bool) -> Inputs:
    """Read the texts, and hold some of them out; `packing` cuts documents into passages, `masked` masks some tokens.

    Raises:
        InputError: for text that is missing or cannot be read.
    """
    mask = BlockMasker(encoder.tokenizer, seed=settings.seed) if masked else None
    train: Texts
    validation: Texts
    if packing:
        corpus = load_corpus(settings, seed=settings.seed)
        description = corpus.description
        identity = fingerprint(corpus.train.fingerprint, corpus.validation.fingerprint)
        train, validation = (
            Passages(side.documents, encoder, seed=settings.seed, mask=mask)
            for side in (corpus.train, corpus.validation)
        )
    else:
        texts, held = _texts(settings)
        name = " ".join(names_only(settings.train_file or []))
        description = f"{name}: {len(texts):,} texts to learn from, {len(held):,} for validation"
        identity = fingerprint(iter(texts), iter(held))
        train, validation = (Texts(side, encoder, mask=mask) for side in (texts, held))
    return Inputs(train, _validation_inputs(validation, settings, encoder.max_length), description, identity)


def _texts(settings: DistillSettings) -> tuple[list[Text], list[Text]]:
    """Training and validation texts, none of them blank; equal texts are in the same part."""
    if settings.train_file is None:
        raise InputError("train_file: expected files of texts that are inputs of their own, got none")
    columns = TextColumns(settings.text_column, settings.text_pair_column)

    def read(field: str) -> list[Text]:
        paths = find_files(getattr(settings, field), field=field)
        texts = read_inputs(paths, columns, document=settings.document)
        if not_blank := [text for text in texts if "".join(filter(None, text)).strip()]:
            return not_blank
        raise InputError(f"{field}: expected texts, got none")

    texts = read("train_file")
    if settings.validation_file is not None:
        held_out = read("validation_file")
        warn_of_learnt(texts, held_out)
        return texts, held_out
    joined = ("\0".join(filter(None, text)) for text in texts)
    parts = split(joined, fraction=settings.validation_fraction, seed=settings.seed, name="train_file")
    train, validation = ([texts[index] for index in part] for part in parts)
    return train, validation


def _validation_inputs(texts: Texts, settings: DistillSettings, longest: int) -> list[Window]:
    """Validation inputs at even intervals over the held-out texts, with lengths as in training."""
    count = min(settings.max_eval_samples, len(texts))
    lengths = _drawn_lengths(count, longest, np.random.default_rng(settings.seed))
    places = np.linspace(0, len(texts) - 1, count).astype(int)
    items = [texts[0, int(place), int(length)] for place, length in zip(places, lengths, strict=True)]
    return sorted(items, key=lambda item: -len(item["input_ids"]))


class Texts(TorchDataset):
    """Each text, or pair of texts, as one input, truncated to the maximum length.

    Indexed by `(epoch, index, tokens)`, as `passage_keys` gives them; `epoch` only decides masks.
    """

    def __init__(self, texts: Sequence[Any], encoder: Encoder, *, mask: BlockMasker | None = None) -> None:
        self._items, self._encoder, self._mask = texts, encoder, mask

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: Key) -> Window:
        epoch, index, _ = key
        window = self._window(key)
        if self._mask is None:
            return window
        masked = self._mask(np.array(window["input_ids"]), epoch=epoch, index=index)
        return {**window, "input_ids": masked["input_ids"].tolist()}

    def _window(self, key: Key) -> Window:
        return next(self._encoder([self._items[key[1]]])).windows[0]


class Passages(Texts):
    """Passages of documents, with at most the number of tokens in the key; whole sentences where at least one fits.

    `documents` have a column `text`; `seed` is that of the choice of sentences.
    """

    def __init__(self, documents: Dataset, encoder: Encoder, *, seed: int, mask: BlockMasker | None = None) -> None:
        self._step = encoder.max_length * _CHARACTERS
        starts = [
            (number, start)
            for number, text in enumerate(texts_of(documents))
            for start in range(0, max(1, len(text) - self._step // 2), self._step)
        ]
        super().__init__(starts, encoder, mask=mask)
        self._documents, self._seed = documents, seed

    def _window(self, key: Key) -> Window:
        epoch, index, tokens = key
        number, start = self._items[index]
        text = self._documents[number]["text"]
        if tokens < self._encoder.max_length:
            random = np.random.default_rng([self._seed, epoch, index])
            text = _sentences(text[start : start + self._step], tokens, random)
        else:
            text = text[start : start + tokens * _MAX_CHARACTERS]
        return next(Encoder(self._encoder.tokenizer, tokens)([(text, None)])).windows[0]


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


def passage_keys(inputs: int, *, longest: int, batch_size: int, seed: int, epoch: int) -> list[Key]:
    """Random order of keys in which all inputs of one update, over all processes, have the same length.

    About half of the updates have full length. The other lengths are log-uniform, so that a model also sees single
    sentences. A pure function of seed and epoch; an incomplete last update is dropped.

    Args:
        inputs: Number of inputs.
        longest: n, the maximum length in tokens.
        batch_size: Inputs of one update over all processes.
        seed, epoch: As for `shuffled_blocks`.
    """
    random = np.random.default_rng([seed, epoch])
    whole = inputs // batch_size * batch_size
    order = random.permutation(inputs)[:whole]
    lengths = _drawn_lengths(whole // batch_size, longest, random)
    return [(epoch, int(index), int(lengths[number // batch_size])) for number, index in enumerate(order)]


def _drawn_lengths(count: int, longest: int, random: np.random.Generator) -> np.ndarray:
    """Random lengths in tokens, int `[count]`: half of them `longest`, the others log-uniform."""
    low, high = math.log(min(_SHORTEST, longest)), math.log(longest)
    lengths = np.exp(random.uniform(low, high, count)).round().astype(int)
    return np.where(random.random(count) < _FULL_LENGTH, longest, lengths)
