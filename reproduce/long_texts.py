"""Long texts and what is searched in them, for `reproduce.documents`: first tokens, late sentences, passkeys.

All choices follow from the seed 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from linformer_cli.errors import InputError
from linformer_kit.data.passages import split_sentences

CHARACTERS = 10  # of a token, more than the mean of any text: what is beyond is not tokenised
TOGETHER = 64  # texts in one call of a tokenizer
SEED = 0
QUERY_WORDS = range(6, 61)  # of a sentence that is a query

# The passkeys of Zhu et al. 2024 (arXiv 2404.12096), with sentences of our own.
NOISE = "The street is quiet this morning. A light rain falls on the roofs. People open their umbrellas and walk on. "
# fmt: off
FIRST_NAMES = (
    "Ada", "Boris", "Clara", "Dario", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas",
    "Karla", "Leon", "Mira", "Nadia", "Oskar", "Paula", "Quentin", "Rosa", "Simon", "Tara",
)
LAST_NAMES = (
    "Adler", "Brandt", "Costa", "Dumont", "Eriksen", "Fischer", "Garcia", "Hansen", "Ivanov", "Jansen",
    "Keller", "Lindgren", "Moreau", "Novak", "Olsen", "Petrov", "Romano", "Sato", "Tanaka", "Weber",
)
# fmt: on
MOST_PASSKEYS = len(FIRST_NAMES) * len(LAST_NAMES)


@dataclass(frozen=True)
class LongText:
    """A text and its tokens, special tokens not included."""

    text: str
    starts: np.ndarray  # first character of each token
    ends: np.ndarray  # the character after each token

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.ends)

    def prefix(self, tokens: int) -> str:
        """The text of the first tokens."""
        return self.text if tokens >= self.tokens else self.text[: self.ends[tokens - 1]]

    def token_span(self, start: int, end: int) -> tuple[int, int]:
        """First token of the characters from `start` to before `end`, and the token after the last one."""
        return int(np.searchsorted(self.ends, start, side="right")), int(np.searchsorted(self.starts, end))


class Passkey(NamedTuple):
    """A sentence to hide in a document, the query that asks for it, and where to hide it, as a share of the text."""

    sentence: str
    question: str
    depth: float


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """First character of each sentence and the character after its last, without white space around it."""
    spans, end = [], 0
    for sentence in split_sentences(text):
        end = text.index(sentence, end) + len(sentence)
        spans.append((end - len(sentence.lstrip()), end - len(sentence) + len(sentence.rstrip())))
    return spans


def with_tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, keep: int) -> Iterator[LongText]:
    """The first `keep` tokens of each text, by a fast tokenizer."""
    trimmed = [text[: keep * CHARACTERS] for text in texts]
    encoded = tokenizer(trimmed, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for text, offsets in zip(trimmed, encoded["offset_mapping"], strict=True):
        places = np.array(offsets[:keep], dtype=np.int64).reshape(-1, 2)
        end = int(places[-1, 1]) if len(offsets) > keep else len(text)
        yield LongText(text[:end], places[:, 0], places[:, 1])


def draw_texts(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, least: int, keep: int, count: int, field: str
) -> list[LongText]:
    """Draw `count` different texts of at least so many tokens at random, by a fast tokenizer.

    Raises:
        InputError: if there are fewer; it names the field.
    """
    different = [text for text in dict.fromkeys(texts) if len(text) >= least]  # a token has one character or more
    drawn: list[LongText] = []
    order = np.random.default_rng(SEED).permutation(len(different))
    for start in range(0, len(order), TOGETHER):
        batch = with_tokens([different[index] for index in order[start : start + TOGETHER]], tokenizer, keep=keep)
        drawn += [text for text in batch if text.tokens >= least]
        if len(drawn) >= count:
            break
    if not 1 <= count <= len(drawn):
        enough = f"1 to {len(drawn)} (the different texts of at least {least:,} tokens)"
        raise InputError(f"{field}: expected {enough}, got {count}")
    return drawn[:count]


def draw_sentences(
    texts: Sequence[LongText], ranges: Sequence[tuple[int, int]], *, least: int, count: int
) -> list[tuple[str, int, int]]:
    """Draw a sentence from each range of tokens of `count` texts that have at least so many tokens.

    A sentence lies completely in its range, from its first token to before its end. One that occurs twice, in one text
    or in two, is not drawn.

    Returns:
        Sentences, each with the index of its text and that of its range.

    Raises:
        InputError: if fewer texts have a sentence in each range.
    """
    spans = [sentence_spans(text.text) for text in texts]
    occurrences = Counter(
        _words(text.text[start:end]) for text, places in zip(texts, spans, strict=True) for start, end in places
    )
    random = np.random.default_rng(SEED)
    drawn: list[tuple[str, int, int]] = []
    for index in map(int, random.permutation(len(texts))):
        text = texts[index]
        if text.tokens < least:
            continue
        usable: list[list[str]] = [[] for _ in ranges]
        for start, end in spans[index]:
            words = _words(text.text[start:end])
            first, last = text.token_span(start, end)
            for position, (low, high) in enumerate(ranges):
                if low <= first and last <= high and len(words) in QUERY_WORDS and occurrences[words] == 1:
                    usable[position].append(text.text[start:end])
        if all(usable):
            drawn += [(each[random.integers(len(each))], index, place) for place, each in enumerate(usable)]
        if len(drawn) == count * len(ranges):
            return drawn
    raise InputError(
        f"queries: expected at most {len(drawn) // len(ranges)} (searched texts of at least {least:,} tokens with a "
        f"sentence of {QUERY_WORDS[0]} to {QUERY_WORDS[-1]} words at each position), got {count}"
    )


def _words(sentence: str) -> tuple[str, ...]:
    return tuple(sentence.casefold().split())


def draw_passkeys(count: int) -> list[Passkey]:
    """Numbers of different persons, at most `MOST_PASSKEYS`, and random depths."""
    random = np.random.default_rng(SEED)
    drawn = []
    for person in random.permutation(MOST_PASSKEYS)[:count]:
        name = f"{FIRST_NAMES[person % len(FIRST_NAMES)]} {LAST_NAMES[person // len(FIRST_NAMES)]}"
        sentence = f"The passkey of {name} is {random.integers(10_000, 100_000)}."
        drawn.append(Passkey(sentence, f"What is the passkey of {name}?", float(random.random())))
    return drawn


def hide(passkey: Passkey, text: LongText, *, tokens: int, count: Callable[[str], int]) -> str:
    """The first `tokens` of a text with the passkey, which counts too, between two of its sentences, at its depth.

    Raises:
        InputError: if the passkey, of so many tokens as `count` gives, does not fit.
    """
    own = count(passkey.sentence)
    if own >= tokens:
        raise InputError(f"lengths: expected room for more than the {own} tokens of a passkey, got {tokens}")
    around = text.prefix(tokens - own)
    places = [*(start for start, _ in sentence_spans(around)), len(around)]
    place = min(places, key=lambda each: abs(each - passkey.depth * len(around)))
    return " ".join(filter(None, (around[:place].rstrip(), passkey.sentence, around[place:].lstrip())))
