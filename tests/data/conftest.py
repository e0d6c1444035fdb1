"""A small tokenizer for the tests of tokens, blocks and masks."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from linformer_kit.data.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["the quick brown fox jumps over the lazy dog"] * 7, vocab_size=281, max_length=67)
