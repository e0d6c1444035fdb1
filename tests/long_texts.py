"""Small encoders and long texts of few words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers

from linformer_kit.data.tokenizer import train_tokenizer
from reproduce.long_texts import NOISE, draw_facts

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


def write_bert(folder: Path, *, longest: int = LONGEST, hidden_size: int = 33) -> Path:
    """An untrained BERT and a tokenizer that has a token for each word of the articles."""
    facts = " ".join(fact.sentence + fact.question for task in ("passkey", "needle") for fact in draw_facts(task, 400))
    text = " ".join([NOISE, *WORDS, *(f"{word}." for word in WORDS), facts])
    tokenizer = train_tokenizer([text] * 5, vocab_size=701, max_length=longest)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=longest,
        hidden_size=hidden_size,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=29,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
