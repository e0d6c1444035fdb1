"""Blocks of equal length; masks: their rates, and that they depend only on the seed, the epoch and the block."""

from __future__ import annotations

import copy
import re

import datasets
import numpy as np
import pytest

from linformer_cli.errors import InputError
from linformer_kit.data import packing
from linformer_kit.data.corpus import Side
from linformer_kit.data.packing import BlockMasker, pack
from linformer_kit.data.tokenizer import train_tokenizer

SEQ_LEN = 13
TEXTS = [f"the quick brown fox number {number} jumps over the lazy dog" for number in range(31)] + ["x" * 211]


def side(texts=TEXTS, key="k"):
    return Side(datasets.Dataset.from_dict({"text": texts}), key)


def reference(texts, tokenizer, seq_len=SEQ_LEN):
    """Blocks by their definition, one token at a time."""
    stream = [token for text in texts for token in [*tokenizer(text, add_special_tokens=False).input_ids, 2]]
    width = seq_len - 1
    return [[0, *stream[at : at + width]] for at in range(0, len(stream) - width + 1, width)]


@pytest.mark.parametrize("batch", [1, 1 << 22])
def test_blocks_are_the_stream_cut_with_a_start_each(tokenizer, tmp_path, monkeypatch, batch):
    monkeypatch.setattr(packing, "_TOKENISED_CHARACTERS", batch)
    blocks = pack(side(), tokenizer, seq_len=SEQ_LEN, cache=tmp_path / "new", description="d")
    assert blocks["input_ids"][:] == reference(TEXTS, tokenizer)
    assert blocks.features == {"input_ids": datasets.List(datasets.Value("int32"), length=SEQ_LEN)}
    assert len(blocks.cache_files) == 1


def test_second_call_reads_the_cache(tokenizer, tmp_path, monkeypatch):
    first = pack(side(), tokenizer, seq_len=SEQ_LEN, cache=tmp_path, description="d")
    monkeypatch.setattr(type(tokenizer), "__call__", None)
    second = pack(side(), tokenizer, seq_len=SEQ_LEN, cache=tmp_path, description="d")
    assert first["input_ids"][:] == second["input_ids"][:]
    other = train_tokenizer(TEXTS, vocab_size=283, max_length=67)
    with pytest.raises(TypeError):
        pack(side(), other, seq_len=SEQ_LEN, cache=tmp_path, description="d")
    for text, seq_len in ((side(key="other"), SEQ_LEN), (side(), 11)):
        with pytest.raises(TypeError):
            pack(text, tokenizer, seq_len=seq_len, cache=tmp_path, description="d")


def test_too_few_tokens_for_a_block(tokenizer, tmp_path):
    text = side(["ab", "c"])
    message = (
        "notes.txt: expected at least 6 tokens for one sequence of max_position_embeddings 7, got fewer; give more text"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        pack(text, tokenizer, seq_len=7, cache=tmp_path, description="notes.txt")
    assert list(tmp_path.iterdir()) == []
    assert len(pack(text, tokenizer, seq_len=6, cache=tmp_path, description="notes.txt")) == 1


# Masks -----------------------------------------------------------------------------------------------------------------

LENGTH = 100_003


@pytest.fixture
def masked(tokenizer):
    """Ids, and what a masker makes of them, with the masks' settings."""

    def mask(length=LENGTH, *, seed=3, epoch=5, index=7, probability=0.15):
        original = np.random.default_rng(0).integers(len(tokenizer), size=length).astype(np.int32)
        before = original.copy()
        masks = BlockMasker(tokenizer, seed=seed, probability=probability)
        block = masks(original, epoch=epoch, index=index)
        assert (original == before).all()
        return original, block["input_ids"].numpy(), block["labels"].numpy()

    return mask


def within_bounds(count, total, rate):
    """Five standard deviations of a binomial: fails once in two million seeds."""
    return abs(count - total * rate) < 5 * (total * rate * (1 - rate)) ** 0.5


def test_an_added_token_replaces_none(tokenizer):
    """It may have no embedding in the model."""
    tokenizer = copy.deepcopy(tokenizer)
    size = len(tokenizer)
    tokenizer.add_tokens([f"<added {number}>" for number in range(3 * size)])
    masker = BlockMasker(tokenizer, seed=0, probability=1.0)
    ids = masker(np.full(10_000, size - 1), epoch=0, index=0)["input_ids"]
    assert ids.max() < size and len(ids.unique()) > 10


def test_rates_are_those_of_bert(tokenizer, masked):
    original, ids, labels = masked()
    selected = labels != -100
    hidden, kept = selected & (ids == tokenizer.mask_token_id), selected & (ids == original)
    replaced = selected & ~hidden & ~kept
    words = len(tokenizer) - len(tokenizer.all_special_ids)
    count = selected.sum()
    assert within_bounds(count, (original >= 5).sum(), 0.15)
    assert within_bounds(hidden.sum(), count, 0.8)
    assert within_bounds(replaced.sum(), count, 0.1 * (1 - 1 / words))  # a random token may be the one that was there
    assert len(np.unique(ids[replaced])) > 0.9 * words


def test_labels_are_the_originals_where_selected_and_nothing_else_changes(tokenizer, masked):
    original, ids, labels = masked(probability=1.0)
    special = np.isin(original, tokenizer.all_special_ids)
    assert special.any() and ((labels == -100) == special).all()
    assert (labels[~special] == original[~special]).all() and (ids[special] == original[special]).all()
    assert not np.isin(ids[~special], [0, 1, 2, 3]).any() and ids.dtype == labels.dtype == np.int64


def test_equal_keys_give_equal_masks_and_others_do_not(masked):
    first = masked(487)
    assert all((one == two).all() for one, two in zip(first, masked(487), strict=True))
    others = [{"seed": 4}, {"epoch": 6}, {"index": 8}, {"seed": 5, "epoch": 3}, {"epoch": 7, "index": 5}]
    assert all((masked(487, **changed)[2] != first[2]).any() for changed in others)
