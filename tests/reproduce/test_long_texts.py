"""Tokens of long texts, sentences and passkeys that are searched."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from linformer_cli.errors import InputError
from reproduce.long_texts import LongText, draw_passkeys, draw_sentences, hide, sentence_spans, with_tokens
from tests.long_texts import article, write_encoder

RANGES = [(0, 61), (61, 127), (127, 251)]


def by_words(text: str) -> LongText:
    """Each word is a token."""
    ends = np.array([place for place, character in enumerate(text + " ") if character == " "])
    return LongText(text, np.array([0, *(ends[:-1] + 1)]), ends)


def texts(count: int = 11) -> list[LongText]:
    return [by_words(article(number)) for number in range(count)]


def test_spans_are_the_sentences_without_white_space():
    text = "  One two.  Is it 3.5? Yes!\n\nA heading\n\n\nThe end. The end. "
    expected = ["One two.", "Is it 3.5?", "Yes!", "A heading", "The end.", "The end."]
    spans = sentence_spans(text)
    assert [text[start:end] for start, end in spans] == expected and spans == sorted(set(spans))
    assert sentence_spans(" \n\n ") == []


def test_sentences_lie_in_their_ranges():
    drawn = draw_sentences(texts(), RANGES, least=251, count=5)
    assert len(drawn) == 15 and len({document for _, document, _ in drawn}) == 5
    for sentence, document, position in drawn:
        before, found, _ = texts()[document].text.partition(sentence)
        first = len(before.split())
        low, high = RANGES[position]
        assert found and low <= first and first + len(sentence.split()) <= high


def test_a_sentence_of_two_texts_is_no_query():
    twice = "The same seven words stand in both."
    pool = [by_words(f"{article(number, 1)} {twice} {article(number + 50, 1)}") for number in range(2)]
    drawn = draw_sentences(pool, [(0, 21)], least=0, count=2)
    assert len(drawn) == 2 and twice not in {sentence for sentence, _, _ in drawn}
    again = f"{twice} {twice.upper()}"
    with pytest.raises(InputError, match=r"queries: expected at most 0 .*, got 1"):
        draw_sentences([by_words(again)], [(0, 14)], least=0, count=1)


@pytest.mark.parametrize("tokens", [61, 251])
def test_a_passkey_is_between_two_sentences_at_its_depth(tokens):
    text = by_words(article(0))
    for passkey in draw_passkeys(17):
        document = hide(passkey, text, tokens=tokens, count=lambda sentence: len(sentence.split()))
        assert len(document.split()) == tokens
        before, found, after = document.partition(passkey.sentence)
        assert found and f"{before}{after.lstrip()}".rstrip() == text.prefix(tokens - len(passkey.sentence.split()))
        assert not (before and after) or before.endswith(". ")
        depth = len(before) / (len(before) + len(after))
        sentence = max(end - start for start, end in sentence_spans(text.text)) / len(text.prefix(tokens - 20))
        assert abs(depth - passkey.depth) <= sentence


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_encoder(tmp_path_factory.mktemp("model")))


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def test_prefixes_are_tokens_of_the_text(tokenizer):
    text = article(0)
    (short,), (whole,) = (list(with_tokens([text], tokenizer, keep=keep)) for keep in (11, 10_000))
    assert (short.tokens, whole.tokens) == (11, len(ids(tokenizer, text))) and whole.text == text
    assert short.prefix(10_000) == short.text == whole.prefix(11)
    for tokens in (1, 17, 251):
        assert ids(tokenizer, whole.prefix(tokens)) == ids(tokenizer, text)[:tokens]
