"""Masks: their rates, and that they depend only on the seed, the epoch and the block."""

from __future__ import annotations

import copy

import datasets
import numpy as np
import pytest
import torch

from linformer_kit.data.masking import BlockMasker, MaskedBlocks, mask_tokens, shuffled_blocks
from linformer_kit.errors import InputError

MASK, SPECIAL, REPLACEMENTS = 4, [0, 1, 2, 3, 4], np.arange(5, 997)
LENGTH = 100_003


def mask(input_ids, **changed):
    arguments = {"seed": 3, "epoch": 5, "index": 7, "probability": 0.15, "mask_token_id": MASK}
    return mask_tokens(input_ids, **{**arguments, "special_ids": SPECIAL, "replacement_ids": REPLACEMENTS, **changed})


def ids(length=LENGTH, lowest=5):
    return np.random.default_rng(0).integers(lowest, 997, size=length).astype(np.int32)


def within_bounds(count, total, rate):
    """Five standard deviations of a binomial: fails once in two million seeds."""
    return abs(count - total * rate) < 5 * (total * rate * (1 - rate)) ** 0.5


def test_a_tokenizer_without_a_mask_token(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.mask_token = None
    with pytest.raises(InputError, match=r"^tokenizer: expected one with a mask token, got none$"):
        BlockMasker(tokenizer, seed=0, probability=0.15)


def test_an_added_token_replaces_none(tokenizer):
    """It may have no embedding in the model."""
    tokenizer = copy.deepcopy(tokenizer)
    size = len(tokenizer)
    tokenizer.add_tokens([f"<added {number}>" for number in range(3 * size)])
    masker = BlockMasker(tokenizer, seed=0, probability=1.0)
    masked = masker(np.full(10_000, size - 1), epoch=0, index=0)["input_ids"]
    assert masked.max() < size and len(masked.unique()) > 10


def test_rates_are_those_of_bert():
    original = ids()
    masked, labels = mask(original)
    selected = labels != -100
    hidden, kept = selected & (masked == MASK), selected & (masked == original)
    replaced = selected & ~hidden & ~kept
    count = selected.sum()
    assert within_bounds(count, LENGTH, 0.15)
    assert within_bounds(hidden.sum(), count, 0.8)
    # One replacement in 992 is the token that was there.
    assert within_bounds(replaced.sum(), count, 0.1 * 991 / 992) and within_bounds(kept.sum(), count, 0.1)
    assert len(np.unique(masked[replaced])) > 700


def test_labels_are_the_originals_where_selected_and_nothing_else_changes():
    original = ids()
    before = original.copy()
    masked, labels = mask(original)
    selected = labels != -100
    assert (labels[selected] == original[selected]).all() and (masked[~selected] == original[~selected]).all()
    assert masked.dtype == labels.dtype == np.int64 and (original == before).all()


def test_special_tokens_are_neither_selected_nor_replacements():
    original = ids(lowest=0)
    masked, labels = mask(original, probability=1.0)
    special = np.isin(original, SPECIAL)
    assert special.any() and (labels[special] == -100).all() and (labels[~special] != -100).all()
    assert not np.isin(masked[~special], [0, 1, 2, 3]).any()


def test_equal_keys_give_equal_masks_and_others_do_not():
    original = ids(487)
    first = mask(original)
    assert all((one == two).all() for one, two in zip(first, mask(original), strict=True))
    others = [{"seed": 4}, {"epoch": 6}, {"index": 8}, {"seed": 5, "epoch": 3}, {"epoch": 7, "index": 5}]
    assert all((mask(original, **changed)[1] != first[1]).any() for changed in others)


@pytest.fixture
def blocks(tokenizer):
    rows = np.random.default_rng(0).integers(5, 281, size=(23, 47)).astype(np.int32)
    return MaskedBlocks(
        datasets.Dataset.from_dict({"input_ids": rows}), BlockMasker(tokenizer, seed=3, probability=0.3)
    )


def test_masked_blocks_are_indexed_by_epoch_and_index(blocks):
    assert len(blocks) == 23
    item = blocks[17]
    assert {name: (value.dtype, value.shape) for name, value in item.items()} == {
        "input_ids": (torch.int64, (47,)),
        "labels": (torch.int64, (47,)),
    }
    assert torch.equal(item["labels"], blocks[(0, 17)]["labels"])
    assert not torch.equal(item["labels"], blocks[(1, 17)]["labels"])
    assert len(list(blocks)) == 23


def test_each_block_once_in_an_order_of_seed_and_epoch():
    def order(seed, epoch):
        return shuffled_blocks(101, seed=seed, epoch=epoch)

    assert sorted(order(3, 5)) == [(5, index) for index in range(101)]
    assert order(3, 5) == order(3, 5)
    assert len({tuple(index for _, index in order(*key)) for key in [(3, 5), (3, 6), (4, 5), (5, 3)]}) == 4


def test_processes_have_equally_many_blocks_and_none_twice(blocks):
    """Fillers of the last batch have no labels."""
    keys = shuffled_blocks(5, seed=3, epoch=2, multiple=4)
    assert len(keys) == 8 and keys[5:] == [(2, None)] * 3 and keys[:5] == shuffled_blocks(5, seed=3, epoch=2)
    assert sorted(index for _, index in keys[:5]) == list(range(5))
    assert len(shuffled_blocks(8, seed=3, epoch=2, multiple=4)) == 8
    filler = blocks[2, None]
    assert (filler["labels"] == -100).all() and torch.equal(filler["input_ids"], blocks[2, 0]["input_ids"])
