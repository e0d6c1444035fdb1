"""Packing of documents into blocks of equal length, without padding.

The documents are concatenated to `tokens of a document, end token, tokens of the next, end token, ...` and cut into
chunks of seq_len - 1 tokens, each preceded by a start token. A shorter last chunk is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import torch
from datasets import Dataset, IterableDataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from linformer_kit.data.cached import cached_dataset
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.tokenizer import end_token_id, start_token_id, tokenizer_fingerprint
from linformer_kit.errors import InputError

# Part of the name of each cached file: increase it when the same documents give other blocks.
_FORMAT_VERSION = 1
_ITERATION_DOCUMENTS = 64
# Characters per call of the tokenizer: enough to use all cores, with bounded memory.
_TOKENISED_CHARACTERS = 1 << 22


def pack(
    documents: Dataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seq_len: int,
    cache: Path | None,
    key: str,
    description: str,
) -> Dataset:
    """Tokenise documents and cut them into blocks, or read the blocks back from the cache.

    Args:
        documents: Data set with a column `text`.
        tokenizer: Has a start and an end token.
        seq_len: Length of a block in tokens, start token included.
        cache: Folder for the blocks, which are then memory-mapped; None keeps them in memory.
        key: Identifies the documents: equal keys mean equal documents.
        description: Name of the documents, for the progress bar and errors.

    Returns:
        Data set with the single column `input_ids`, int32 `[seq_len]`.

    Raises:
        InputError: The documents have too few tokens for one block.
    """
    if cache is None:
        return Dataset(pyarrow.Table.from_batches(_batches(documents, tokenizer, seq_len, description)))
    identity = json.dumps([key, tokenizer_fingerprint(tokenizer), seq_len, _FORMAT_VERSION])
    path = cache / f"{hashlib.sha256(identity.encode()).hexdigest()}.arrow"
    return cached_dataset(path, _schema(seq_len), lambda: _batches(documents, tokenizer, seq_len, description))


class StreamedBlocks(torch.utils.data.IterableDataset):
    """The blocks of a stream of documents, packed and masked while they are read.

    The files of the stream are split among the data loader workers, each of which packs its own. Workers beyond the
    number of files get none.

    Args:
        documents: Stream with a column `text`.
        tokenizer: Has a mask, a start and an end token.
        seq_len: Length of a block in tokens, start token included.
        seed: Seed of all masks.
        probability: Share of the tokens to select.
    """

    def __init__(
        self,
        documents: IterableDataset,
        tokenizer: PreTrainedTokenizerFast,
        *,
        seq_len: int,
        seed: int,
        probability: float,
    ) -> None:
        self._documents = documents
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._mask = BlockMasker(tokenizer, seed=seed, probability=probability)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides masks and shuffling, also in workers that are already running."""
        self._documents.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        epoch = self._documents.epoch
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            # Threads of a forked tokenizer can deadlock, and the workers already run in parallel.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # `datasets` splits the stream among workers only when it is iterated row by row.
        texts = (row["text"] for row in self._documents)
        packed = (block for group in blocks(texts, self._tokenizer, self._seq_len) for block in group)
        for count, block in enumerate(packed):
            yield self._mask(block, epoch=epoch, index=first + count * step)


def blocks(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, seq_len: int) -> Iterator[np.ndarray]:
    """Pack texts and yield blocks in groups, int32 `[blocks, seq_len]`."""
    width = seq_len - 1
    rest = np.empty(0, dtype=np.int32)
    for tokens in _token_stream(texts, tokenizer):
        stream = np.concatenate([rest, tokens])
        count = len(stream) // width
        pieces, rest = stream[: count * width].reshape(count, width), stream[count * width :]
        yield np.insert(pieces, 0, start_token_id(tokenizer), axis=1)


def _token_stream(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[np.ndarray]:
    """Yield the tokens of all texts in chunks, each text followed by the end token."""
    end = [end_token_id(tokenizer)]
    for batch in _batched_by_size(texts):
        # Not verbose: texts longer than the model's maximum length are expected here.
        encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        yield np.concatenate([np.array(ids + end, dtype=np.int32) for ids in encoded["input_ids"]])


def _batched_by_size(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _TOKENISED_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _batches(
    documents: Dataset, tokenizer: PreTrainedTokenizerFast, seq_len: int, description: str
) -> Iterator[pyarrow.RecordBatch]:
    bar = tqdm(_texts(documents), total=len(documents), desc=f"Tokenising {description}", unit=" documents", delay=2)
    count = 0
    for group in blocks(bar, tokenizer, seq_len):
        count += len(group)
        yield pyarrow.record_batch(
            [pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(group.reshape(-1)), seq_len)], _schema(seq_len)
        )
    if count == 0:
        # There are so few that counting them again is fast.
        tokens = sum(len(piece) for piece in _token_stream(_texts(documents), tokenizer))
        raise InputError(
            f"{description}: {tokens} tokens; expected at least {seq_len - 1} for one sequence of "
            f"max_position_embeddings {seq_len}"
        )


def _texts(documents: Dataset) -> Iterator[str]:
    return (text for batch in documents.iter(batch_size=_ITERATION_DOCUMENTS) for text in batch["text"])


def _schema(seq_len: int) -> pyarrow.Schema:
    return pyarrow.schema({"input_ids": pyarrow.list_(pyarrow.int32(), seq_len)})
