"""Tokens of labelled texts in a memory-mapped file: equal to the tokenizer's output, made once."""

from __future__ import annotations

import dataclasses
import logging
import pickle

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from linformer_kit.data import inputs
from linformer_kit.data.examples import Columns, Example, Labels
from linformer_kit.data.inputs import labelled_inputs
from linformer_kit.data.tokenizer import Encoder

NAMES = Labels(("a", "b", "c"))
LONGEST = 13


def examples(*, pairs: bool = False, multi_label: bool = False, count: int = 11) -> list[Example]:
    texts = ["the quick brown fox jumps " * (number * 5 % 7) for number in range(count)]
    return [
        Example(
            f"t.csv line {number}",
            text.strip(),
            "over the lazy dog" if pairs else None,
            ("abc"[number % 3], "c") if multi_label else ("abc"[number % 3],),
            multi_label,
        )
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def with_types(tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer with different token types for the first and the second text."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, model_input_names=names, **tokenizer.special_tokens_map
    )


def made(texts, tokenizer, cache, *, labels=NAMES, longest=LONGEST):
    return labelled_inputs(texts, labels, Columns("text"), Encoder(tokenizer, longest), cache=cache, name="training")


@pytest.mark.parametrize(("pairs", "multi_label"), [(False, True), (True, False)])
def test_items_are_what_the_tokenizer_gives(with_types, tmp_path, monkeypatch, pairs, multi_label):
    monkeypatch.setattr(inputs, "_TOGETHER", 3)
    texts = examples(pairs=pairs, multi_label=multi_label)
    labels = dataclasses.replace(NAMES, multi_label=multi_label)
    found = made(texts, with_types, tmp_path, labels=labels).items
    assert len(found) == len(texts)
    for index, example in enumerate(texts):
        encoded = with_types(
            example.text, example.text_pair, truncation=True, max_length=LONGEST, return_attention_mask=False
        )
        target = labels.target(example, column="label")
        assert found[index] == {**encoded, "labels": target} and list(found[index]) == [*encoded, "labels"]
        assert found.lengths[index] == len(encoded["input_ids"])
        kinds = {type(number) for number in (*found[index]["input_ids"], *np.atleast_1d(target).tolist())}
        assert kinds == ({int, float} if multi_label else {int})


def test_what_texts_lose_is_counted(tokenizer, tmp_path, caplog):
    texts = examples()
    whole = [len(tokenizer(example.text, verbose=False)["input_ids"]) for example in texts]
    lost = [length - LONGEST for length in whole if length > LONGEST]
    assert len(lost) > 2
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # made, and read
            assert made(texts, tokenizer, tmp_path).cut == {
                "texts": len(lost),
                "tokens": sum(lost),
                "of_tokens": sum(whole),
            }
    said = (
        f"training: {len(lost)} of 11 texts are longer than 13 tokens and lose {sum(lost)} of all {sum(whole)} tokens"
    )
    assert [record.message for record in caplog.records] == [said] * 2


def test_tokens_are_made_once_for_what_they_depend_on(tokenizer, with_types, tmp_path, monkeypatch):
    texts = examples()
    first = made(texts, tokenizer, tmp_path).items
    relabelled = [dataclasses.replace(example, values=("b",), source="elsewhere") for example in texts]
    monkeypatch.setattr(inputs, "_batches", lambda *_: pytest.fail("tokenised again"))
    again = made(relabelled, tokenizer, tmp_path).items
    assert [item["input_ids"] for item in again] == [item["input_ids"] for item in first]
    assert again.labels.tolist() == [1] * 11
    cut_left = pickle.loads(pickle.dumps(tokenizer))
    cut_left.truncation_side = "left"
    others = {
        "text": (made, [texts[:-1], tokenizer, tmp_path], {}),
        "pair": (made, [examples(pairs=True), tokenizer, tmp_path], {}),
        "length": (made, [texts, tokenizer, tmp_path], {"longest": 11}),
        "types": (made, [texts, with_types, tmp_path], {}),
        "side": (made, [texts, cut_left, tmp_path], {}),
    }
    for name, (function, arguments, named) in others.items():
        with pytest.raises(pytest.fail.Exception, match="tokenised again"):
            function(*arguments, **named)
            pytest.fail(f"{name}: taken for another's tokens")
