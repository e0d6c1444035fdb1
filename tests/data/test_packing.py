"""Blocks of equal length."""

from __future__ import annotations

import re

import datasets
import pytest

from linformer_cli.errors import InputError
from linformer_kit.data import packing
from linformer_kit.data.packing import pack
from linformer_kit.data.tokenizer import train_tokenizer

SEQ_LEN = 13
TEXTS = [f"the quick brown fox number {number} jumps over the lazy dog" for number in range(31)] + ["x" * 211]


@pytest.fixture
def documents():
    return datasets.Dataset.from_dict({"text": TEXTS})


def reference(texts, tokenizer, seq_len=SEQ_LEN):
    """Blocks by their definition, one token at a time."""
    stream = [token for text in texts for token in [*tokenizer(text, add_special_tokens=False).input_ids, 2]]
    width = seq_len - 1
    return [[0, *stream[at : at + width]] for at in range(0, len(stream) - width + 1, width)]


@pytest.mark.parametrize("batch", [1, 1 << 22])
def test_blocks_are_the_stream_cut_with_a_start_each(documents, tokenizer, tmp_path, monkeypatch, batch):
    monkeypatch.setattr(packing, "_TOKENISED_CHARACTERS", batch)
    blocks = pack(documents, tokenizer, seq_len=SEQ_LEN, cache=tmp_path / "new", key="k", description="d")
    assert blocks["input_ids"][:] == reference(TEXTS, tokenizer)
    assert blocks.features == {"input_ids": datasets.List(datasets.Value("int32"), length=SEQ_LEN)}
    assert len(blocks.cache_files) == 1


def test_second_call_reads_the_cache(documents, tokenizer, tmp_path, monkeypatch):
    first = pack(documents, tokenizer, seq_len=SEQ_LEN, cache=tmp_path, key="k", description="d")
    monkeypatch.setattr(type(tokenizer), "__call__", None)
    second = pack(documents, tokenizer, seq_len=SEQ_LEN, cache=tmp_path, key="k", description="d")
    assert first["input_ids"][:] == second["input_ids"][:]
    other = train_tokenizer(TEXTS, vocab_size=283, max_length=67)
    with pytest.raises(TypeError):
        pack(documents, other, seq_len=SEQ_LEN, cache=tmp_path, key="k", description="d")
    for changed in ({"key": "other"}, {"seq_len": 11}):
        arguments = {"seq_len": SEQ_LEN, "key": "k", **changed}
        with pytest.raises(TypeError):
            pack(documents, tokenizer, cache=tmp_path, description="d", **arguments)


def test_too_few_tokens_for_a_block(tokenizer, tmp_path):
    documents = datasets.Dataset.from_dict({"text": ["ab", "c"]})
    message = "notes.txt: expected at least 6 tokens for one sequence of max_position_embeddings 7, got fewer"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        pack(documents, tokenizer, seq_len=7, cache=tmp_path, key="k", description="notes.txt")
    assert list(tmp_path.iterdir()) == []
    assert len(pack(documents, tokenizer, seq_len=6, cache=tmp_path, key="k", description="notes.txt")) == 1
