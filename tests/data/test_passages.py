"""Passages of all lengths: functions of seed, epoch and number, whole sentences, and no text left out."""

from __future__ import annotations

import pytest
from datasets import Dataset

from linformer_cli.settings import DistillSettings
from linformer_kit.data.passages import Passages, load_inputs, passage_keys, split_sentences
from linformer_kit.data.tokenizer import Encoder, train_tokenizer

SENTENCES = [f"number {number} was good." for number in range(97)]
LONGEST = 23


@pytest.fixture(scope="module")
def encoder():
    tokenizer = train_tokenizer([" ".join(SENTENCES)], vocab_size=277, max_length=LONGEST)
    return Encoder(tokenizer, LONGEST)


@pytest.fixture(scope="module")
def documents():
    return Dataset.from_list(
        [{"text": " ".join(SENTENCES[:60])}, {"text": "short."}, {"text": " ".join(SENTENCES[60:])}]
    )


def text_of(window, encoder) -> str:
    return encoder.tokenizer.decode(window["input_ids"], skip_special_tokens=True).strip()


def test_full_length_passages_cover_the_documents(documents, encoder):
    passages = Passages(documents, encoder, seed=3)
    windows = [passages[0, index, LONGEST] for index in range(len(passages))]
    assert max(len(window["input_ids"]) for window in windows) == LONGEST
    starts = [text_of(window, encoder)[:6] for window in windows]
    assert starts[0] == "number" and "short." in [text_of(window, encoder) for window in windows]
    characters = sum(len(text) for text in documents["text"])
    assert len(passages) == pytest.approx(characters / (5 * LONGEST), abs=3)


def test_a_function_of_seed_epoch_and_number(documents, encoder):
    one, same, other = (Passages(documents, encoder, seed=seed) for seed in (3, 3, 4))
    keys = [(epoch, index, 12) for epoch in range(2) for index in range(len(one))]
    assert [one[key] for key in keys] == [same[key] for key in reversed(keys)][::-1]
    assert [one[key] for key in keys] != [other[key] for key in keys]
    half = len(keys) // 2
    assert [one[key] for key in keys[:half]] != [one[key] for key in keys[half:]]


def test_blank_texts_are_nothing_to_learn_from(tmp_path, encoder):
    """Of lines as of rows of a table; a pair needs one text."""
    (tmp_path / "lines.txt").write_text("one\n\n \ntwo\nthree\n")
    (tmp_path / "rows.csv").write_text('text,second\none,""\n" "," "\n"",two\nthree,four\n')
    for name, column, expected in (
        ("lines.txt", None, ["one", "two", "three"]),
        ("rows.csv", "second", ["one", "two", "threefour"]),
    ):
        settings = DistillSettings(
            model="m",
            train_file=[str(tmp_path / name)],
            text_pair_column=column,
            document="line",
            validation_fraction=0.3,
        )
        inputs = load_inputs(settings, encoder, packing=False, masked=False)
        windows = [*(inputs.train[0, index, LONGEST] for index in range(len(inputs.train))), *inputs.validation]
        assert sorted(" ".join(text_of(window, encoder).split()) for window in windows) == sorted(expected)


def test_texts_of_their_own_that_are_learnt_are_counted(tmp_path, encoder, caplog):
    """Pairs are equal if both texts are."""
    (tmp_path / "train.csv").write_text("text,second\none,two\nthree,four\n")
    (tmp_path / "others.csv").write_text("text,second\none,two\nthree,five\n")
    files = {"train_file": [str(tmp_path / "train.csv")], "validation_file": [str(tmp_path / "others.csv")]}
    load_inputs(DistillSettings(model="m", text_pair_column="second", **files), encoder, packing=False, masked=False)
    assert caplog.messages == [
        "validation: 1 of 2 texts are also in the training texts, which makes the results too good"
    ]


def test_each_pass_has_one_length():
    keys = passage_keys(103, longest=512, batch_size=5, seed=3, epoch=0)
    assert len(keys) == 100 and keys == passage_keys(103, longest=512, batch_size=5, seed=3, epoch=0)
    passes = [keys[start : start + 5] for start in range(0, 100, 5)]
    assert all(len({tokens for _, _, tokens in one}) == 1 for one in passes)
    lengths = [one[0][2] for one in passes]
    assert len({index for _, index, _ in keys}) == 100 and 512 in lengths and min(lengths) < 512
    later = passage_keys(103, longest=512, batch_size=5, seed=3, epoch=1)
    assert [epoch for epoch, _, _ in later] == [1] * 100
    assert [index for _, index, _ in later] != [index for _, index, _ in keys]
    assert passage_keys(103, longest=512, batch_size=5, seed=4, epoch=0) != keys


def test_sentences_keep_their_white_space():
    text = "  One two.  Is it 3.5? Yes!\n\nA heading\n\n\nThe end"
    sentences = split_sentences(text)
    assert [sentence.strip() for sentence in sentences] == ["One two.", "Is it 3.5?", "Yes!", "A heading", "The end"]
    assert "".join(sentences).replace("\n", "") == text.replace("\n", "") and split_sentences(" \n\n ") == []
