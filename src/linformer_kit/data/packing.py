"""Pretraining text: documents and a tokenizer → blocks of equal length, without padding → blocks with labels.

The documents are concatenated to `tokens of a document, end token, tokens of the next, end token, ...` and cut into
chunks of seq_len - 1 tokens, each preceded by a start token. A shorter last chunk is dropped. Masks are pure functions
of seed, epoch and block, so a resumed run sees the same as an uninterrupted one, with any number of processes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from jaxtyping import Int
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from linformer_cli.errors import InputError
from linformer_cli.settings import IGNORED_LABEL, PretrainSettings
from linformer_kit.data.corpus import Corpus, Side, load_corpus, texts_of
from linformer_kit.data.files import cache_folder, cached_dataset
from linformer_kit.data.read import text_groups
from linformer_kit.data.tokenizer import (
    TRAINING_VERSION,
    end_token_id,
    load_tokenizer,
    start_token_id,
    tokenizer_fingerprint,
    tokenizer_of_prompts,
    train_tokenizer,
)
from linformer_kit.files.manifest import fingerprint
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder

logger = logging.getLogger(__name__)

_MASKED, _REPLACED = 0.8, 0.1  # shares of the selected tokens, as in BERT and RoBERTa; the others are unchanged
# Part of the name of each cached file: increase it when the same documents give other blocks or another tokenizer.
_FORMAT_VERSION = 1
# Characters per call of the tokenizer: enough to use all cores, with bounded memory.
_TOKENISED_CHARACTERS = 1 << 22


@dataclass(frozen=True)
class MaskedText:
    """Data of pretraining, masked or causal, the same for all models of a run."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    train: MaskedBlocks
    validation: MaskedBlocks  # the same at each evaluation


def load_masked_text(settings: PretrainSettings) -> MaskedText:
    """Load documents and tokenizer and make masked sequences; tokenised text is cached."""
    seq_len, causal = settings.model.max_position_embeddings, settings.model.causal
    tokenizer = _existing_tokenizer(settings)  # first, so that its errors come before the text is read
    corpus = load_corpus(settings, seed=settings.seed if settings.split_seed is None else settings.split_seed)
    logger.info("%s", corpus.description)
    if tokenizer is None:
        tokenizer = _trained_tokenizer(settings, corpus.train)
        tokenizer = tokenizer_of_prompts(tokenizer) if causal else tokenizer
    masks = next_tokens if causal else BlockMasker(tokenizer, seed=settings.seed, probability=settings.mlm_probability)

    cache = cache_folder() / "blocks"
    sides = {"training text": corpus.train, "validation text": corpus.validation}
    train, validation = (
        MaskedBlocks(pack(side, tokenizer, seq_len=seq_len, cache=cache, description=description), masks)
        for description, side in sides.items()
    )
    if not any((validation[index]["labels"] != IGNORED_LABEL).any() for index in range(len(validation))):
        expected = f"enough to mask any of {len(validation)} validation sequences"
        raise InputError(f"mlm_probability: expected {expected}, got {settings.mlm_probability}")
    return MaskedText(corpus, tokenizer, train, validation)


def _existing_tokenizer(settings: PretrainSettings) -> PreTrainedTokenizerFast | None:
    """The tokenizer of `from_model`, or the one that is asked for; an `InputError` for two that differ."""
    tokenizers = []
    for name in filter(None, (settings.from_model, settings.tokenizer)):
        causal = settings.model.causal
        tokenizer = load_tokenizer(name, max_length=settings.model.max_position_embeddings, is_masked=not causal)
        tokenizers.append(tokenizer_of_prompts(tokenizer) if causal else tokenizer)
    if len(set(map(tokenizer_fingerprint, tokenizers))) > 1:
        raise InputError(f"tokenizer: expected that of from_model {settings.from_model}, got {settings.tokenizer}")
    return tokenizers[0] if tokenizers else None


def _trained_tokenizer(settings: PretrainSettings, text: Side) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the text, from the cache if it is there."""
    vocab_size, max_length = settings.model.vocab_size, settings.model.max_position_embeddings
    folder = cache_folder() / "tokenizers" / fingerprint(text.fingerprint, vocab_size, TRAINING_VERSION)
    if folder.exists():
        try:
            return load_tokenizer(str(folder), max_length=max_length)
        except InputError:
            shutil.rmtree(folder)  # damaged: make it again
    tokenizer = train_tokenizer(texts_of(text.documents), vocab_size=vocab_size, max_length=max_length)
    with suppress(InputError), whole_folder(folder) as part:  # another process may write the same tokenizer first
        save_tokenizer(tokenizer, part)
    return load_tokenizer(str(folder), max_length=max_length)


def pack(text: Side, tokenizer: PreTrainedTokenizerFast, *, seq_len: int, cache: Path, description: str) -> Dataset:
    """Tokenise documents and cut them into blocks, or read the blocks back from the cache.

    Args:
        text: The documents.
        tokenizer: Has a start and an end token.
        seq_len: Length of a block in tokens, start token included.
        cache: Folder for the blocks.
        description: For the progress bar and errors.

    Returns:
        Data set with the single column `input_ids`, int32 `[seq_len]`.

    Raises:
        InputError: The documents have too few tokens for one block.
    """
    schema = pyarrow.schema({"input_ids": pyarrow.list_(pyarrow.int32(), seq_len)})

    def batches() -> Iterator[pyarrow.RecordBatch]:
        bar = tqdm(texts_of(text.documents), total=len(text.documents), desc=f"Tokenising {description}", delay=2)
        count = 0
        for group in blocks(bar, tokenizer, seq_len):
            count += len(group)
            ids = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(group.reshape(-1)), seq_len)
            yield pyarrow.record_batch([ids], schema)
        if count == 0:
            expected = f"at least {seq_len - 1} tokens for one sequence of max_position_embeddings {seq_len}"
            raise InputError(f"{description}: expected {expected}, got fewer; give more text")

    name = fingerprint(text.fingerprint, tokenizer_fingerprint(tokenizer), seq_len, _FORMAT_VERSION)
    return cached_dataset(cache / f"{name}.arrow", schema, batches)


def blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, seq_len: int) -> Iterator[np.ndarray]:
    """Pack texts and yield blocks in groups, int32 `[blocks, seq_len]`."""
    width, end = seq_len - 1, end_token_id(tokenizer)
    rest = np.empty(0, dtype=np.int32)
    for group in text_groups(texts, characters=_TOKENISED_CHARACTERS):
        # Not verbose: texts longer than the model's maximum length are expected here.
        encoded = tokenizer(group, add_special_tokens=False, return_attention_mask=False, verbose=False)
        stream = np.concatenate([rest, *(np.array([*ids, end], dtype=np.int32) for ids in encoded["input_ids"])])
        count = len(stream) // width
        pieces, rest = stream[: count * width].reshape(count, width), stream[count * width :]
        yield np.insert(pieces, 0, start_token_id(tokenizer), axis=1)


class BlockMasker:
    """Masks blocks of tokens, as BERT and RoBERTa do.

    Of the selected tokens 80 % become the mask token and 10 % random tokens, neither special nor added ones.

    Args:
        tokenizer: Gives the mask token, and which tokens are special.
        seed: Seed of all masks, not negative.
        probability: Probability of each non-special token to be selected.

    Raises:
        InputError: for a tokenizer without a mask token.

    Source:
        Devlin et al. 2019, section 3.1; Liu et al. 2019 (RoBERTa), section 4.1, for new masks in each epoch.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, probability: float = 0.15) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError("tokenizer: expected one with a mask token, got none")
        self._seed, self._probability, self._mask_id = seed, probability, tokenizer.mask_token_id
        self._special_ids = np.array(tokenizer.all_special_ids)
        # Added tokens may have no embedding in the model.
        excluded = [*self._special_ids, *tokenizer.get_added_vocab().values()]
        self._replacement_ids = np.setdiff1d(list(tokenizer.get_vocab().values()), excluded)

    def __call__(self, block: Int[np.ndarray, " seq"], *, epoch: int, index: int) -> dict[str, torch.Tensor]:
        """Mask the token ids of one block, which is not changed: equal arguments give equal masks.

        Returns:
            `input_ids` and `labels`, int64 `[seq]`: labels are the original ids where selected, else `IGNORED_LABEL`.
        """
        # Counter-based generator: (seed, epoch) is the key, and each index has its own range of 2^192 draws.
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch], counter=[0, 0, 0, index]))
        select, act = generator.random((2, len(block)))
        replacements = self._replacement_ids[generator.integers(len(self._replacement_ids), size=len(block))]
        original = block.astype(np.int64)
        selected = (select < self._probability) & ~np.isin(original, self._special_ids)
        masked = original.copy()
        masked[selected & (act < _MASKED)] = self._mask_id
        replaced = selected & (act >= _MASKED) & (act < _MASKED + _REPLACED)
        masked[replaced] = replacements[replaced]
        labels = np.where(selected, original, IGNORED_LABEL)
        return {"input_ids": torch.from_numpy(masked), "labels": torch.from_numpy(labels)}


def next_tokens(block: Int[np.ndarray, " seq"], *, epoch: int, index: int) -> dict[str, torch.Tensor]:
    """As a `BlockMasker`, for causal models, which shift labels themselves: all but the start token are targets."""
    ids = torch.from_numpy(block.astype(np.int64))
    labels = ids.clone()
    labels[0] = IGNORED_LABEL
    return {"input_ids": ids, "labels": labels}


class MaskedBlocks(torch.utils.data.Dataset):
    """Packed blocks with new masks in each epoch.

    Indexed by `(epoch, index)`, as `shuffled_blocks` gives them, or by `index` for epoch 0. The key None gives a block
    without labels, which the loss ignores.

    Attributes:
        blocks: The blocks before masking, as arrays.
    """

    def __init__(self, blocks: Dataset, masks: Callable[..., dict[str, torch.Tensor]]) -> None:
        self.blocks = blocks.with_format("numpy")
        self._masks = masks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, key: int | tuple[int, int] | None) -> dict[str, torch.Tensor]:
        if key is None:
            return {**self[0], "labels": torch.full_like(self[0]["labels"], IGNORED_LABEL)}
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < len(self):  # a negative index would give the same block with other masks
            raise IndexError(f"block {index}: expected 0 to {len(self) - 1}")
        return self._masks(self.blocks[index]["input_ids"], epoch=epoch, index=index)


def shuffled_blocks(length: int, *, seed: int, epoch: int) -> list[tuple[int, int]]:
    """Random order of the keys `(epoch, index)` of `MaskedBlocks`: a pure function of seed and epoch."""
    return [(epoch, index) for index in np.random.default_rng([seed, epoch]).permutation(length).tolist()]
