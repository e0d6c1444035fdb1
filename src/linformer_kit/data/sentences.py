"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re

# After a full stop, exclamation or question mark before white space, and between two line breaks.
_BETWEEN = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=\n)")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, white space included, blank ones left out."""
    return [sentence for sentence in _BETWEEN.split(text) if sentence.strip()]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """First character of each sentence and the character after its last, without white space around it."""
    spans, start = [], 0
    for sentence in _BETWEEN.split(text):
        if sentence.strip():
            first = start + len(sentence) - len(sentence.lstrip())
            spans.append((first, start + len(sentence.rstrip())))
        start += len(sentence)
    return spans
