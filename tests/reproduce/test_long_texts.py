"""Tokens of long texts, sentences and facts that are searched."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from linformer_kit.errors import InputError
from reproduce.long_texts import (
    MOST_FACTS,
    LongText,
    draw_facts,
    draw_sentences,
    draw_texts,
    hide,
    sentence_spans,
    split_in_halves,
    with_tokens,
)
from tests.long_texts import article, write_bert

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


@pytest.mark.parametrize("words", [5, 61])
def test_sentences_of_few_or_many_words_are_no_queries(words):
    with pytest.raises(InputError, match="of 6 to 60 words"):
        draw_sentences([by_words(article(0, 1, words))], [(0, 100)], least=0, count=1)


def test_queries_are_of_long_texts():
    pool = [by_words(article(number, 40 if number % 2 else 20)) for number in range(10)]
    drawn = draw_sentences(pool, [(0, 61)], least=251, count=5)
    assert {document for _, document, _ in drawn} == {1, 3, 5, 7, 9}
    with pytest.raises(InputError, match=r"queries: expected at most 5 \(searched texts of at least 251 tokens"):
        draw_sentences(pool, [(0, 61)], least=251, count=6)


def test_halves_are_disjoint():
    text = by_words(article(0))
    first, second = split_in_halves(text)
    assert text.text == first.text + second.text and first.text.endswith(".")
    assert 0 <= first.tokens - second.tokens <= 14
    assert second.text.split() == text.text.split()[first.tokens :]


def test_halves_without_sentences_are_cut():
    text = by_words(" ".join(f"word{number}" for number in range(11)))
    assert [half.tokens for half in split_in_halves(text)] == [5, 6]


@pytest.mark.parametrize("task", ["passkey", "needle"])
def test_facts_are_about_different_persons(task):
    facts = draw_facts(task, MOST_FACTS)
    assert len({fact.question for fact in facts}) == len({fact.sentence for fact in facts}) == 400
    assert facts[:7] == draw_facts(task, 7)
    assert all(0 <= fact.depth < 1 for fact in facts)


@pytest.mark.parametrize("tokens", [61, 251])
def test_a_fact_is_between_two_sentences_at_its_depth(tokens):
    text = by_words(article(0))
    for fact in draw_facts("needle", 17):
        document = hide(fact, text, tokens=tokens, count=lambda sentence: len(sentence.split()))
        assert len(document.split()) == tokens
        before, found, after = document.partition(fact.sentence)
        assert found and f"{before}{after.lstrip()}".rstrip() == text.prefix(tokens - len(fact.sentence.split()))
        assert not before or before.endswith(". ")
        depth = len(before) / (len(before) + len(after))
        sentence = max(end - start for start, end in sentence_spans(text.text)) / len(text.prefix(tokens - 20))
        assert abs(depth - fact.depth) <= sentence


def test_a_fact_that_does_not_fit_is_an_error():
    (fact,) = draw_facts("passkey", 1)
    with pytest.raises(InputError, match="lengths: expected room for more than the 7 tokens of a fact, got 7"):
        hide(fact, by_words(article(0)), tokens=7, count=lambda sentence: len(sentence.split()))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_bert(tmp_path_factory.mktemp("model")))


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def test_prefixes_and_parts_are_tokens_of_the_text(tokenizer):
    text = article(0)
    (short,), (whole,) = (list(with_tokens([text], tokenizer, keep=keep)) for keep in (11, 10_000))
    assert (short.tokens, whole.tokens) == (11, len(ids(tokenizer, text))) and whole.text == text
    assert short.prefix(10_000) == short.text == whole.prefix(11)
    for tokens in (1, 17, 251):
        assert ids(tokenizer, whole.prefix(tokens)) == ids(tokenizer, text)[:tokens]
    part = whole.part(17, 53)
    assert ids(tokenizer, part.text) == ids(tokenizer, text)[17:53]
    assert whole.prefix(17) + part.prefix(5) == whole.prefix(22) and part.tokens == 36


def test_a_span_of_characters_has_tokens(tokenizer):
    (whole,) = with_tokens(["river stone. cloud tree lamp. salt"], tokenizer, keep=101)
    tokens = tokenizer.tokenize(whole.text)
    first, last = whole.token_span(13, 29)
    assert "".join(tokens[first:last]).replace("Ġ", " ").strip() == "cloud tree lamp."


def test_long_texts_are_drawn_once_each(tokenizer):
    texts = [article(number, sentences=5 + 10 * (number % 2)) for number in range(20)]
    drawn, again = (draw_texts(all_texts, tokenizer, count=7, least=113, keep=127) for all_texts in (texts * 2, texts))
    assert [text.text for text in drawn] == [text.text for text in again]
    assert len({text.text for text in drawn}) == 7 and all(113 <= text.tokens <= 127 for text in drawn)
    assert len(draw_texts(texts * 2, tokenizer, count=17, least=113, keep=127)) == 10
