"""Tokens of labelled texts, and the cache of documents and blocks: made once, and again if damaged."""

from __future__ import annotations

import dataclasses
import os
import time

import numpy as np
import pyarrow
import pytest
from transformers import PreTrainedTokenizerFast

from linformer_kit.data import tokenizer as data_tokenizer
from linformer_kit.data.files import cached_dataset
from linformer_kit.data.inputs import labelled_inputs
from linformer_kit.data.labelled import Columns, Example, Labels
from linformer_kit.data.tokenizer import Encoder

NAMES = Labels(("a", "b", "c"))
LONGEST = 13
SCHEMA = pyarrow.schema({"input_ids": pyarrow.list_(pyarrow.int32())})
ROWS = [[number] * (number % 7) for number in range(31)]


def examples(*, pairs: bool = False, multi_label: bool = False, count: int = 11) -> list[Example]:
    pair = "over the lazy dog" if pairs else None
    return [
        Example(
            source=f"t.csv line {number}",
            text=("the quick brown fox jumps " * (number * 5 % 7)).strip(),
            text_pair=pair,
            values=("abc"[number % 3], "c") if multi_label else ("abc"[number % 3],),
            multi_label=multi_label,
        )
        for number in range(count)
    ]


@pytest.fixture
def with_types(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer with different token types for the first and the second text."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, model_input_names=names, **tokenizer.special_tokens_map
    )


def tokenised(texts, tokenizer, *, labels=NAMES, longest=LONGEST):
    return labelled_inputs(texts, labels, Columns("text"), Encoder(tokenizer, longest), name="training")


@pytest.mark.parametrize(("pairs", "multi_label"), [(False, True), (True, False)])
def test_items_are_what_the_tokenizer_gives(with_types, monkeypatch, pairs, multi_label):
    monkeypatch.setattr(data_tokenizer, "_BATCH_SIZE", 3)
    texts = examples(pairs=pairs, multi_label=multi_label)
    labels = dataclasses.replace(NAMES, multi_label=multi_label)
    items = tokenised(texts, with_types, labels=labels)
    assert len(items) == len(texts)
    for index, example in enumerate(texts):
        encoded = with_types(
            example.text, example.text_pair, truncation=True, max_length=LONGEST, return_attention_mask=False
        )
        target = labels.target(example, column="label")
        assert items[index] == {**encoded, "labels": target} and list(items[index]) == [*encoded, "labels"]
        assert items.lengths[index] == len(encoded["input_ids"])
        kinds = {type(number) for number in (*items[index]["input_ids"], *np.atleast_1d(target).tolist())}
        assert kinds == ({int, float} if multi_label else {int})


def batches():
    for start in range(0, len(ROWS), 5):
        yield pyarrow.record_batch([pyarrow.array(ROWS[start : start + 5], SCHEMA.field(0).type)], SCHEMA)


def not_again():
    pytest.fail("made a second time")


def test_a_file_is_made_once_and_mapped_and_again_if_damaged(tmp_path):
    path = tmp_path / "new" / "a.arrow"
    for make in (batches, not_again):
        stored = cached_dataset(path, SCHEMA, make)
        assert stored["input_ids"][:] == ROWS and stored.cache_files == [{"filename": str(path)}]
    assert os.listdir(path.parent) == [path.name]
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * len(whole)):
        path.write_bytes(damaged)
        assert cached_dataset(path, SCHEMA, batches)["input_ids"][:] == ROWS


def test_what_a_killed_process_left_is_removed_once_it_has_not_grown_for_a_day(tmp_path):
    for name, age in ((".killed.7.part", 25), (".alive.7.part", 23), ("other", 99)):
        (tmp_path / name).write_bytes(b"half")
        then = time.time() - age * 3600
        os.utime(tmp_path / name, (then, then))
    cached_dataset(tmp_path / "a.arrow", SCHEMA, batches)
    assert sorted(os.listdir(tmp_path)) == [".alive.7.part", "a.arrow", "other"]
