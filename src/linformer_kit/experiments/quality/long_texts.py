"""Long texts with the places of their tokens, so that all methods read the same first tokens of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

_CHARACTERS = 10  # per token, more than the mean of any text: what is beyond is not tokenised
_TOGETHER = 64  # texts in one call of a tokenizer


@dataclass(frozen=True)
class LongText:
    """A text and its tokens, special tokens not included.

    Attributes:
        text: The text.
        starts: First character of each token.
        ends: The character after each token.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.ends)

    def prefix(self, tokens: int) -> str:
        """The text of the first tokens."""
        return self.text if tokens >= self.tokens else self.text[: self.ends[tokens - 1]]

    def part(self, first: int, last: int) -> LongText:
        """The text of the tokens from `first` to before `last`, white space before it included."""
        start, end = int(self.ends[first - 1]) if first else 0, int(self.ends[last - 1])
        return LongText(self.text[start:end], self.starts[first:last] - start, self.ends[first:last] - start)

    def token_span(self, start: int, end: int) -> tuple[int, int]:
        """First token of the characters from `start` to before `end`, and the token after the last one."""
        return int(np.searchsorted(self.ends, start, side="right")), int(np.searchsorted(self.starts, end))


def with_tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, keep: int) -> list[LongText]:
    """The first `keep` tokens of each text.

    Args:
        texts: One text or more.
        tokenizer: A fast tokenizer, which gives the places of tokens.
        keep: Number of tokens; the rest of a text is dropped.
    """
    return [
        text
        for start in range(0, len(texts), _TOGETHER)
        for text in _batch(texts[start : start + _TOGETHER], tokenizer, keep)
    ]


def _batch(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, keep: int) -> Iterator[LongText]:
    trimmed = [text[: keep * _CHARACTERS] for text in texts]
    encoded = tokenizer(trimmed, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for text, offsets in zip(trimmed, encoded["offset_mapping"], strict=True):
        places = np.array(offsets[:keep], dtype=np.int64).reshape(-1, 2)
        end = int(places[-1, 1]) if len(offsets) > keep else len(text)
        yield LongText(text[:end], places[:, 0], places[:, 1])


def draw_texts(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, least: int, keep: int, count: int, seed: int
) -> list[LongText]:
    """Draw different texts of at least `least` tokens at random.

    Args:
        texts: All texts; of equal ones, one is used.
        tokenizer: A fast tokenizer.
        least: Minimum number of tokens.
        keep: As for `with_tokens`.
        count: Number of texts.
        seed: Seed of the choice.

    Returns:
        The texts, `count` of them or, if there are fewer, all.
    """
    # A token has one character or more.
    different = [text for text in dict.fromkeys(texts) if len(text) >= least]
    drawn: list[LongText] = []
    order = np.random.default_rng(seed).permutation(len(different))
    for start in range(0, len(order), _TOGETHER):
        batch = with_tokens([different[index] for index in order[start : start + _TOGETHER]], tokenizer, keep=keep)
        drawn += [text for text in batch if text.tokens >= least]
        if len(drawn) >= count:
            break
    return drawn[:count]
