"""Tokens of texts, and the choice of long texts."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from linformer_kit.experiments.quality.long_texts import draw_texts, with_tokens
from tests.experiments.quality.long_texts import article, write_bert


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_bert(tmp_path_factory.mktemp("model")))


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


@pytest.mark.parametrize("tokens", [1, 17, 251])
def test_a_prefix_has_the_first_tokens(tokenizer, tokens):
    text = article(0)
    (measured,) = with_tokens([text], tokenizer, keep=307)
    assert measured.tokens == 307
    assert ids(tokenizer, measured.prefix(tokens)) == ids(tokenizer, text)[:tokens]


def test_the_rest_is_dropped(tokenizer):
    text = article(0)
    (short,), (whole,) = (with_tokens([text], tokenizer, keep=keep) for keep in (11, 10_000))
    assert (short.tokens, whole.tokens) == (11, len(ids(tokenizer, text)))
    assert short.prefix(10_000) == short.text == whole.prefix(11) and whole.text == text


def test_a_part_is_a_text_with_tokens(tokenizer):
    (whole,) = with_tokens([article(0)], tokenizer, keep=101)
    part = whole.part(17, 53)
    assert ids(tokenizer, part.text) == ids(tokenizer, whole.text)[17:53]
    assert whole.prefix(17) + part.prefix(5) == whole.prefix(22) and part.tokens == 36


def test_a_span_of_characters_has_tokens(tokenizer):
    (whole,) = with_tokens(["river stone. cloud tree lamp. salt"], tokenizer, keep=101)
    tokens = tokenizer.tokenize(whole.text)
    first, last = whole.token_span(13, 29)
    assert "".join(tokens[first:last]).replace("Ġ", " ").strip() == "cloud tree lamp."


def test_long_texts_are_drawn_once_each(tokenizer):
    texts = [article(number, sentences=5 + 10 * (number % 2)) for number in range(20)]
    options = {"least": 113, "keep": 127, "seed": 0}
    drawn = draw_texts(texts * 2, tokenizer, count=7, **options)
    again, other = (draw_texts(texts, tokenizer, count=7, **{**options, "seed": seed}) for seed in (0, 1))
    assert [text.text for text in drawn] == [text.text for text in again] != [text.text for text in other]
    assert len({text.text for text in drawn}) == 7 and all(113 <= text.tokens <= 127 for text in drawn)
    assert len(draw_texts(texts * 2, tokenizer, count=17, **options)) == 10
