"""Small encoders and long texts of few words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from reproduce.long_texts import NOISE, draw_passkeys
from tests.conftest import write_bert

LONGEST = 61  # input of the encoder in tokens
WORDS = "river stone cloud tree lamp glass paper wheel bread salt coat ring horse boat hill door".split()  # noqa: SIM905


def article(seed: int, sentences: int = 53, words: int = 7) -> str:
    """A text of different sentences."""
    random = np.random.default_rng(seed)
    return " ".join(" ".join(random.choice(WORDS, words)) + "." for _ in range(sentences))


def write_articles(path: Path, count: int = 13) -> Path:
    """Articles as JSON Lines."""
    rows = ({"title": f"title {number}", "text": article(number)} for number in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_encoder(folder: Path) -> Path:
    """An untrained BERT and a tokenizer of the words of the articles and of passkeys."""
    passkeys = " ".join(passkey.sentence + passkey.question for passkey in draw_passkeys(400))
    return write_bert(folder, " ".join([NOISE, *WORDS, *(f"{word}." for word in WORDS), passkeys]), longest=LONGEST)
