"""Data of masked-language-model pretraining: documents, a tokenizer, masked sequences."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import shutil
from contextlib import suppress
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from linformer_kit.data.cached import cache_folder, make_cache_folder
from linformer_kit.data.corpus import Corpus, load_corpus
from linformer_kit.data.masking import MaskedBlocks
from linformer_kit.data.packing import StreamedBlocks, pack
from linformer_kit.data.tokenizer import load_tokenizer, train_tokenizer
from linformer_kit.errors import InputError
from linformer_kit.files.writing import whole_folder
from linformer_kit.settings import IGNORED_LABEL, PretrainSettings

logger = logging.getLogger(__name__)

# Documents of a stream that a tokenizer is trained on.
STREAM_TOKENIZER_DOCUMENTS = 10_000


@dataclasses.dataclass(frozen=True)
class MaskedText:
    """Data of masked-language-model pretraining, the same for all models of a run.

    Attributes:
        corpus: The documents.
        tokenizer: The tokenizer.
        train: Masked training sequences.
        validation: Masked validation sequences, the same at each evaluation.
        validation_blocks: The validation sequences before masking.
    """

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    train: MaskedBlocks | StreamedBlocks
    validation: MaskedBlocks
    validation_blocks: Dataset


def load_text(settings: PretrainSettings) -> Corpus:
    """Load the documents of a pretraining."""
    return load_corpus(settings, seed=settings.seed if settings.split_seed is None else settings.split_seed)


def load_masked_text(settings: PretrainSettings) -> MaskedText:
    """Load documents and tokenizer and make masked sequences; tokenised text is cached."""
    seq_len = settings.model.max_position_embeddings
    if existing := _existing_tokenizer(settings):
        load_tokenizer(existing, max_length=seq_len)  # raises an error before the text is read
    corpus = load_text(settings)
    logger.info("%s", corpus.description)
    tokenizer = _load_or_train_tokenizer(settings, corpus)
    cache = None if corpus.streaming else cache_folder(settings.cache_dir) / "blocks"
    masking: dict[str, Any] = {"seed": settings.seed, "probability": settings.mlm_probability}
    packing: dict[str, Any] = {"seq_len": seq_len, "cache": cache}
    held_out = corpus.validation
    if corpus.streaming:
        held_out = Dataset.from_list(list(held_out))
        train: MaskedBlocks | StreamedBlocks = StreamedBlocks(corpus.train, tokenizer, seq_len=seq_len, **masking)
    else:
        blocks = pack(
            corpus.train, tokenizer, key=f"train {corpus.fingerprint}", description="training text", **packing
        )
        train = MaskedBlocks(blocks, tokenizer, **masking)
    validation_blocks = pack(
        held_out, tokenizer, key=f"validation {corpus.fingerprint}", description="validation text", **packing
    )
    validation = MaskedBlocks(validation_blocks, tokenizer, **masking)
    if not any((validation[index]["labels"] != IGNORED_LABEL).any() for index in range(len(validation))):
        raise InputError(
            f"mlm_probability: expected enough to mask any of {len(validation)} validation sequences, "
            f"got {settings.mlm_probability}"
        )
    return MaskedText(corpus, tokenizer, train, validation, validation_blocks)


def _existing_tokenizer(settings: PretrainSettings) -> str | None:
    """Folder or hub id of an existing tokenizer, or None to train one."""
    return settings.from_model or settings.tokenizer


def _load_or_train_tokenizer(settings: PretrainSettings, corpus: Corpus) -> PreTrainedTokenizerFast:
    max_length = settings.model.max_position_embeddings
    if existing := _existing_tokenizer(settings):
        return load_tokenizer(existing, max_length=max_length)
    vocab_size = settings.model.vocab_size
    if corpus.streaming:
        texts = (row["text"] for row in itertools.islice(corpus.train, STREAM_TOKENIZER_DOCUMENTS))
        return train_tokenizer(texts, vocab_size=vocab_size, max_length=max_length)
    key = hashlib.sha256(json.dumps([corpus.fingerprint, vocab_size]).encode()).hexdigest()
    folder = cache_folder(settings.cache_dir) / "tokenizers" / key
    if folder.exists():
        try:
            return load_tokenizer(str(folder), max_length=max_length)
        except InputError:
            shutil.rmtree(folder)  # damaged: make it again
    tokenizer = train_tokenizer((row["text"] for row in corpus.train), vocab_size=vocab_size, max_length=max_length)
    make_cache_folder(folder.parent)
    with suppress(InputError), whole_folder(folder) as part:  # another process may write the same tokenizer first
        tokenizer.save_pretrained(part)
    return load_tokenizer(str(folder), max_length=max_length)
