"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re

# After a full stop, exclamation or question mark before white space, and between two line breaks.
_BETWEEN = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)(?=\n)")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, white space included, blank ones left out."""
    return [sentence for sentence in _BETWEEN.split(text) if sentence.strip()]
