"""Queries and documents of searches, and ranks."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.data.sentences import sentence_spans
from linformer_kit.errors import InputError
from linformer_kit.experiments.quality import document_tasks
from linformer_kit.experiments.quality.document_tasks import (
    draw_facts,
    draw_sentences,
    hide,
    ranks,
    search_scores,
    split_in_halves,
)
from linformer_kit.experiments.quality.long_texts import LongText
from tests.experiments.quality.long_texts import article

RANGES = [(0, 61), (61, 127), (127, 251)]


def by_words(text: str) -> LongText:
    """Each word is a token."""
    ends = np.array([place for place, character in enumerate(text + " ") if character == " "])
    return LongText(text, np.array([0, *(ends[:-1] + 1)]), ends)


def texts(count: int = 11) -> list[LongText]:
    return [by_words(article(number)) for number in range(count)]


def test_sentences_lie_in_their_ranges():
    drawn = draw_sentences(texts(), RANGES, least=251, count=5, seed=0)
    assert len(drawn) == 15 and len({sentence.document for sentence in drawn}) == 5
    for sentence in drawn:
        before, found, _ = texts()[sentence.document].text.partition(sentence.text)
        first = len(before.split())
        low, high = RANGES[sentence.position]
        assert found and low <= first and first + len(sentence.text.split()) <= high


def test_sentences_follow_from_the_seed():
    first, again, other = (draw_sentences(texts(), RANGES, least=251, count=5, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_a_sentence_of_two_texts_is_no_query():
    twice = "The same seven words stand in both."
    pool = [by_words(f"{article(number, 1)} {twice} {article(number + 50, 1)}") for number in range(2)]
    for seed in range(20):
        drawn = draw_sentences(pool, [(0, 21)], least=0, count=2, seed=seed)
        assert twice not in {sentence.text for sentence in drawn}
    again = f"{twice} {twice.upper()}"
    with pytest.raises(InputError, match=r"queries: expected at most 0 .*, got 1"):
        draw_sentences([by_words(again)], [(0, 14)], least=0, count=1, seed=0)


@pytest.mark.parametrize("words", [5, 61])
def test_sentences_of_few_or_many_words_are_no_queries(words):
    with pytest.raises(InputError, match="of 6 to 60 words"):
        draw_sentences([by_words(article(0, 1, words))], [(0, 100)], least=0, count=1, seed=0)


def test_queries_are_of_long_texts():
    pool = [by_words(article(number, 40 if number % 2 else 20)) for number in range(10)]
    drawn = draw_sentences(pool, [(0, 61)], least=251, count=5, seed=0)
    assert {sentence.document for sentence in drawn} == {1, 3, 5, 7, 9}
    with pytest.raises(InputError, match=r"queries: expected at most 5 \(searched texts of at least 251 tokens"):
        draw_sentences(pool, [(0, 61)], least=251, count=6, seed=0)


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
    facts = draw_facts(task, document_tasks.MOST_FACTS, seed=3)
    assert len({fact.question for fact in facts}) == len({fact.sentence for fact in facts}) == 400
    assert facts[:7] == draw_facts(task, 7, seed=3) != draw_facts(task, 7, seed=4)
    assert all(0 <= fact.depth < 1 for fact in facts)


@pytest.mark.parametrize("tokens", [61, 251])
def test_a_fact_is_between_two_sentences_at_its_depth(tokens):
    text = by_words(article(0))
    for fact in draw_facts("needle", 17, seed=0):
        document = hide(fact, text, tokens=tokens, count=lambda sentence: len(sentence.split()))
        assert len(document.split()) == tokens
        before, found, after = document.partition(fact.sentence)
        assert found and f"{before}{after.lstrip()}".rstrip() == text.prefix(tokens - len(fact.sentence.split()))
        assert not before or before.endswith(". ")
        depth = len(before) / (len(before) + len(after))
        sentence = max(end - start for start, end in sentence_spans(text.text)) / len(text.prefix(tokens - 20))
        assert abs(depth - fact.depth) <= sentence


def test_a_fact_that_does_not_fit_is_an_error():
    (fact,) = draw_facts("passkey", 1, seed=0)
    with pytest.raises(InputError, match="fact_lengths: expected more than the 7 tokens of a fact, got room for 7"):
        hide(fact, by_words(article(0)), tokens=7, count=lambda sentence: len(sentence.split()))


def test_ranks_by_hand():
    documents = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.6, 0.8]])
    queries = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]])
    # Cosines: (1, 0, .6, .6), (.6, .8, 1, 1), (0, 1, .8, .8), (.8, .6, .96, .96); equal documents count against one.
    assert ranks(queries, documents, [0, 2, 1, 1]).tolist() == [1, 2, 1, 4]


def test_scores_by_hand():
    scores = search_scores(np.array([1, 2, 10, 11, 1]))
    assert scores == {
        "recall@1": 0.4,
        "recall@10": 0.8,
        "mrr": pytest.approx((2 + 1 / 2 + 1 / 10 + 1 / 11) / 5),
        "queries": 5,
    }
