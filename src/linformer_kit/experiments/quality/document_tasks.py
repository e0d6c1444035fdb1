"""Searches that need what stands late in a long text: late sentences, hidden facts and halves of texts.

Each task gives queries, documents and, for each query, the one document to find. All choices follow from a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linformer_kit.data.sentences import sentence_spans
from linformer_kit.errors import InputError
from linformer_kit.experiments.quality.long_texts import LongText

_WORDS = range(6, 61)  # of a sentence that is a query

# Passkey and needle as in Zhu et al. 2024 (arXiv 2404.12096), with sentences of our own.
NOISE = "The street is quiet this morning. A light rain falls on the roofs. People open their umbrellas and walk on. "
_PASSKEY = ("The passkey of {name} is {number}.", "What is the passkey of {name}?")
_NEEDLES = (
    ("{name} keeps a spare key under the blue flower pot.", "Where does {name} keep a spare key?"),
    ("{name} learned to play the cello from a retired sailor.", "Which instrument did {name} learn to play?"),
    ("{name} eats two green apples before every concert.", "What does {name} eat before every concert?"),
    ("{name} once crossed the lake in a boat made of cardboard.", "How did {name} once cross the lake?"),
    ("{name} was born in a lighthouse during a storm.", "Where was {name} born?"),
)
# fmt: off
_FIRST = (
    "Ada", "Boris", "Clara", "Dario", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas",
    "Karla", "Leon", "Mira", "Nadia", "Oskar", "Paula", "Quentin", "Rosa", "Simon", "Tara",
)
_LAST = (
    "Adler", "Brandt", "Costa", "Dumont", "Eriksen", "Fischer", "Garcia", "Hansen", "Ivanov", "Jansen",
    "Keller", "Lindgren", "Moreau", "Novak", "Olsen", "Petrov", "Romano", "Sato", "Tanaka", "Weber",
)
# fmt: on
MOST_FACTS = len(_FIRST) * len(_LAST)


@dataclass(frozen=True)
class Search:
    """Queries and the documents that are searched.

    Attributes:
        queries: The queries.
        documents: The documents.
        targets: For each query, the index of the document to find.
    """

    queries: list[str]
    documents: list[str]
    targets: list[int]


@dataclass(frozen=True)
class Sentence:
    """A sentence of a text.

    Attributes:
        text: The sentence.
        document: Index of its text.
        position: Index of the range of tokens that it stands in.
    """

    text: str
    document: int
    position: int


@dataclass(frozen=True)
class Fact:
    """A sentence to hide in a document.

    Attributes:
        sentence: The sentence.
        question: The query that asks for it.
        depth: Where it is inserted, as a share of the document.
    """

    sentence: str
    question: str
    depth: float


def draw_sentences(
    texts: Sequence[LongText], ranges: Sequence[tuple[int, int]], *, least: int, count: int, seed: int
) -> list[Sentence]:
    """Draw a sentence from each range of tokens of `count` texts.

    A sentence that occurs twice, in one text or in two, is not drawn.

    Args:
        texts: All texts that are searched.
        ranges: First token of each range and the token after its last; the sentence lies completely in it.
        least: Minimum number of tokens of the texts to draw from.
        count: Number of texts to draw from.
        seed: Seed of the choice of texts and sentences.

    Raises:
        InputError: if fewer texts have a sentence in each range.
    """
    spans = [sentence_spans(text.text) for text in texts]
    occurrences = Counter(
        _words(text.text[start:end]) for text, places in zip(texts, spans, strict=True) for start, end in places
    )
    random = np.random.default_rng(seed)
    drawn: list[Sentence] = []
    for index in map(int, random.permutation(len(texts))):
        text = texts[index]
        if text.tokens < least:
            continue
        usable: list[list[str]] = [[] for _ in ranges]
        for start, end in spans[index]:
            words = _words(text.text[start:end])
            first, last = text.token_span(start, end)
            for position, (low, high) in enumerate(ranges):
                if low <= first and last <= high and len(words) in _WORDS and occurrences[words] == 1:
                    usable[position].append(text.text[start:end])
        if all(usable):
            drawn += [Sentence(each[random.integers(len(each))], index, place) for place, each in enumerate(usable)]
        if len(drawn) == count * len(ranges):
            return drawn
    found = len(drawn) // len(ranges)
    raise InputError(
        f"queries: expected at most {found} (searched texts of at least {least:,} tokens with a sentence of "
        f"{_WORDS[0]} to {_WORDS[-1]} words at each position), got {count}"
    )


def _words(sentence: str) -> tuple[str, ...]:
    return tuple(sentence.casefold().split())


def split_in_halves(text: LongText) -> tuple[LongText, LongText]:
    """Two disjoint parts of a text: before and from the first sentence that begins in the second half."""
    middle = text.tokens // 2
    first = (text.token_span(*span)[0] for span in sentence_spans(text.text))
    split = next((token for token in first if middle <= token < text.tokens), middle)
    return text.part(0, split), text.part(split, text.tokens)


def draw_facts(task: str, count: int, *, seed: int) -> list[Fact]:
    """Different persons, each with one fact, and random depths.

    Args:
        task: `passkey` or `needle`.
        count: Number of facts, at most `MOST_FACTS`.
        seed: Seed of persons, numbers and depths.
    """
    random = np.random.default_rng(seed)
    facts = []
    for number, person in enumerate(random.permutation(MOST_FACTS)[:count]):
        sentence, question = _PASSKEY if task == "passkey" else _NEEDLES[number % len(_NEEDLES)]
        values = {
            "name": f"{_FIRST[person % len(_FIRST)]} {_LAST[person // len(_FIRST)]}",
            "number": random.integers(10_000, 100_000),
        }
        facts.append(Fact(sentence.format(**values), question.format(**values), float(random.random())))
    return facts


def hide(fact: Fact, text: LongText, *, tokens: int, count: Callable[[str], int]) -> str:
    """The first tokens of a text with the fact between two of its sentences, at the fact's depth.

    Args:
        fact: The fact.
        text: The text around it.
        tokens: Tokens of the result, fact included.
        count: Gives the number of tokens of a sentence.

    Raises:
        InputError: if the fact does not fit.
    """
    own = count(fact.sentence)
    if own >= tokens:
        raise InputError(f"fact_lengths: expected more than the {own} tokens of a fact, got room for {tokens}")
    around = text.prefix(tokens - own)
    places = [*(start for start, _ in sentence_spans(around)), len(around)]
    place = min(places, key=lambda each: abs(each - fact.depth * len(around)))
    return " ".join(filter(None, (around[:place].rstrip(), fact.sentence, around[place:].lstrip())))


def ranks(queries: np.ndarray, documents: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Rank of the document to find among all documents by the cosine of embeddings, int `[queries]`; 1: the nearest.

    Other documents with the same cosine count as nearer, so a method that makes documents equal finds none of them.

    Args:
        queries: Embeddings of length 1, `[queries, embed]`.
        documents: Embeddings of length 1, `[documents, embed]`.
        targets: For each query, the index of the document to find.
    """
    cosine = queries @ documents.T
    own = cosine[np.arange(len(targets)), targets]
    return (cosine >= own[:, None]).sum(axis=1)


def search_scores(found: np.ndarray) -> dict[str, float]:
    """Recall at 1 and 10 and mean reciprocal rank of ranks, int `[queries]`."""
    return {
        "recall@1": float((found <= 1).mean()),
        "recall@10": float((found <= 10).mean()),
        "mrr": float((1 / found).mean()),
        "queries": len(found),
    }
