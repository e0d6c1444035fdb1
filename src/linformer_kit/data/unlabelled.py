"""Unlabelled texts of a distillation, as training and validation inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from linformer_kit.data.corpus import Corpus, load_corpus
from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.data.examples import TextColumns, read_inputs
from linformer_kit.data.files import find_files
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.passages import Passages, Texts, drawn_lengths
from linformer_kit.data.split import hold_out_texts
from linformer_kit.errors import InputError
from linformer_kit.settings import CorpusSettings, DistillSettings, names_only

Text = tuple[str, str | None]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a distillation.

    Attributes:
        train: Training inputs, indexed by the keys of `passage_keys`.
        validation: Validation inputs, the longest first.
        description: Source and numbers of texts in one line, for logs and reports.
        fingerprint: Hexadecimal hash of the texts and of how they are split.
    """

    train: Passages | Texts
    validation: list[Window]
    description: str
    fingerprint: str


def load_inputs(settings: DistillSettings, encoder: Encoder, *, packing: bool, masked: bool) -> Inputs:
    """Read the texts, and hold some of them out.

    Args:
        settings: Source of the texts.
        encoder: Tokenises them.
        packing: Whether to cut documents into passages.
        masked: Whether to mask some tokens.

    Raises:
        InputError: for text that is missing or cannot be read.
    """
    mask = None
    if masked:
        mask = BlockMasker(encoder.tokenizer, seed=settings.seed, probability=settings.mlm_probability)
    train: Passages | Texts
    held_out: Passages | Texts
    if packing:
        corpus = _corpus(settings)
        train, held_out = (
            Passages(documents, encoder, seed=settings.seed, mask=mask)
            for documents in (corpus.train, corpus.validation)
        )
        sides: tuple[Any, Any] = corpus.train, corpus.validation
        source, kind, fingerprint = corpus.description.partition(":")[0], "documents", corpus.fingerprint
    else:
        sides = _split(settings)
        train, held_out = (Texts(texts, encoder, mask=mask) for texts in sides)
        source, kind, fingerprint = "", "texts", hashlib.sha256(json.dumps(sides).encode()).hexdigest()
    name = " ".join(names_only(settings.train_file)) if settings.train_file else source
    description = f"{name}: {len(sides[0]):,} {kind} to learn from, {len(sides[1]):,} for validation"
    return Inputs(train, _validation_inputs(held_out, settings, encoder.max_length), description, fingerprint)


def _corpus(settings: DistillSettings) -> Corpus:
    own = CorpusSettings(
        train_file=settings.train_file,
        validation_file=settings.validation_file,
        text_column=settings.text_column,
        document=settings.document,
        validation_fraction=settings.validation_fraction,
        streaming=False,
        cache_dir=settings.cache_dir,
    )
    return load_corpus(own, seed=settings.seed)


def _split(settings: DistillSettings) -> tuple[list[Text], list[Text]]:
    """Training and validation texts; equal texts are in the same part."""
    if settings.train_file is None:
        raise InputError("train_file: expected files of texts that are inputs of their own, got none")
    texts = _some(settings.train_file, settings, "train_file")
    if settings.validation_file is not None:
        return texts, _some(settings.validation_file, settings, "validation_file")
    return hold_out_texts(
        texts, lambda text: filter(None, text), fraction=settings.validation_fraction, seed=settings.seed
    )


def _some(patterns: list[str], settings: DistillSettings, field: str) -> list[Text]:
    texts = list(_read(patterns, settings, field))
    if not texts:
        raise InputError(f"{field}: expected texts, got none")
    return texts


def _read(patterns: list[str], settings: DistillSettings, field: str) -> Iterator[Text]:
    columns = TextColumns(settings.text_column, settings.text_pair_column)
    return read_inputs(find_files(patterns, field=field), columns, document=settings.document)


def _validation_inputs(held_out: Passages | Texts, settings: DistillSettings, longest: int) -> list[Window]:
    """Validation inputs at even intervals over the held-out texts, with lengths as in training."""
    count = min(settings.max_eval_samples, len(held_out))
    lengths = drawn_lengths(count, longest, np.random.default_rng(settings.seed))
    places = np.linspace(0, len(held_out) - 1, count).astype(int)
    items = [held_out[0, int(place), int(length)] for place, length in zip(places, lengths, strict=True)]
    return sorted(items, key=lambda item: -len(item["input_ids"]))
