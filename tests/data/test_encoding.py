"""Texts as inputs: truncation, and windows that cover the whole text."""

from __future__ import annotations

import re

import pytest
from transformers import AutoTokenizer

from linformer_kit import InputError
from linformer_kit.data.tokenizer import Encoder
from tests.conftest import save_tokenizer

LONG = "the quick brown fox jumps over the lazy dog " * 5


def content(tokenizer, window: dict) -> list[int]:
    return [token for token in window["input_ids"] if token not in tokenizer.all_special_ids]


def test_short_texts_are_whole_and_in_order(tokenizer):
    texts = [("the dog", None), ("", None), ("fox", None)] * 200
    encoded = Encoder(tokenizer, 30)(texts)
    assert [tokenizer.decode(text.windows[0]["input_ids"], skip_special_tokens=True) for text in encoded] == [
        text for text, _ in texts
    ]
    assert all(len(text.windows) == 1 and text.lost == 0 for text in encoded)
    assert [text.tokens for text in encoded] == [len(text.windows[0]["input_ids"]) for text in encoded]
    assert set(encoded[0].windows[0]) == {"input_ids"}


def test_a_text_without_tokens_is_one_padding_token(tmp_path):
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, model_input_names=["input_ids", "token_type_ids"])
    empty, other = Encoder(tokenizer, 7)([("", None), ("w1 w2", None)])
    assert empty.windows == [{"input_ids": [tokenizer.pad_token_id], "token_type_ids": [0]}]
    assert other.windows[0]["token_type_ids"] == [0, 0]


def test_longer_texts_are_cut_and_the_loss_is_counted(tokenizer):
    (text,) = Encoder(tokenizer, 11)([(LONG, None)])
    whole = tokenizer(LONG)["input_ids"]
    (window,) = text.windows
    assert len(window["input_ids"]) == 11 and window["input_ids"][-1] == tokenizer.eos_token_id
    assert content(tokenizer, window) == whole[1:10]
    assert (text.tokens, text.lost) == (len(whole), len(whole) - 11)


@pytest.mark.parametrize("stride", [0, 3])
def test_windows_cover_the_whole_text_and_overlap_by_the_stride(tokenizer, stride):
    (text,) = Encoder(tokenizer, 11, stride)([(LONG, None)])
    whole = content(tokenizer, {"input_ids": tokenizer(LONG)["input_ids"]})
    joined: list[int] = []
    for window in text.windows:
        assert len(window["input_ids"]) <= 11
        tokens = content(tokenizer, window)
        assert not joined or joined[len(joined) - stride :] == tokens[:stride]
        joined += tokens[stride if joined else 0 :]
    assert joined == whole and text.lost == 0 and len(text.windows) > 2


def test_pairs_need_room_for_a_token(tokenizer):
    special = tokenizer.num_special_tokens_to_add(pair=True)
    assert len(Encoder(tokenizer, special + 1)([("fox", LONG)])[0].windows[0]["input_ids"]) == special + 1
    with pytest.raises(
        InputError, match=rf"^max_length: expected at least {special + 1} for pairs of texts, got {special}$"
    ):
        Encoder(tokenizer, special)([("fox", LONG)])


def test_of_two_texts_the_longer_one_is_cut_first(tokenizer):
    (text,) = Encoder(tokenizer, 20)([("the fox", LONG)])
    kept = tokenizer.decode(text.windows[0]["input_ids"], skip_special_tokens=True)
    assert kept.startswith("the fox") and len(text.windows[0]["input_ids"]) == 20 and text.lost > 0


@pytest.mark.parametrize(
    ("max_length", "stride", "message"),
    [(2, None, "max_length: expected at least 3, got 2"), (11, 9, "stride: expected 0 to 8, got 9")],
)
def test_lengths_that_do_not_fit(tokenizer, max_length, stride, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Encoder(tokenizer, max_length, stride)
