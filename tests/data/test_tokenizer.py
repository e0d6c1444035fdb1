"""Trained and loaded tokenizers; texts as inputs: truncation, and windows that cover the whole text."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from linformer_cli.errors import InputError
from linformer_cli.settings import ModelSettings, PretrainSettings
from linformer_kit.data import packing
from linformer_kit.data.tokenizer import (
    Encoder,
    load_tokenizer,
    tokenizer_fingerprint,
    tokenizer_of_prompts,
    train_tokenizer,
)
from tests.conftest import save_bert_tokenizer, save_tokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SAMPLES = ["the quick <mask> fox", "  spaces\n and \ttabs ", "日本語 🎉 naïve", "", "<s>x</s>"]
LONG = "the quick brown fox jumps over the lazy dog " * 5


@pytest.fixture
def saved(tokenizer, tmp_path):
    """A folder as pretraining leaves it, whose config.json names a model that transformers does not know."""
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "linformer"}))
    return tmp_path


def test_a_trained_tokenizer_is_cached_until_training_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"a text with the number {number} " * 7)
    numbers = dict.fromkeys(("per_device_train_batch_size", "max_steps", "eval_steps", "save_steps"), 1)
    asked = {"train_file": [str(tmp_path / "*.txt")], "learning_rate": 1e-3, "warmup_steps": 0, **numbers}
    sizes = ModelSettings(vocab_size=270, max_position_embeddings=17)
    for version, trained in ((1, 1), (1, 1), (2, 2)):
        monkeypatch.setattr(packing, "TRAINING_VERSION", version)
        packing.load_masked_text(PretrainSettings(model=sizes, **asked))
        assert len(list((tmp_path / "cache" / "linformer_kit" / "tokenizers").iterdir())) == trained


# `st.text` takes seconds for its table of all characters.
CHARACTERS = st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF) | st.integers(32, 126)
TEXTS = st.lists(CHARACTERS.map(chr)).map("".join)


@settings(max_examples=30)
@given(TEXTS.filter(lambda text: not any(token in text for token in SPECIAL)))
def test_any_text_comes_back_exactly(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.all_special_ids)


@pytest.mark.parametrize("load", [AutoTokenizer.from_pretrained, lambda path: load_tokenizer(str(path), max_length=67)])
def test_saved_tokenizer_loads_by_itself_and_gives_equal_ids(tokenizer, saved, load):
    loaded = load(saved)
    ids = tokenizer(SAMPLES).input_ids
    assert loaded(SAMPLES).input_ids == ids
    assert [loaded.decode(each) for each in ids] == tokenizer.batch_decode(ids)
    assert loaded.model_max_length == 67 and loaded.mask_token_id == 4
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)


def test_a_tokenizer_of_bert_is_saved_without_token_types(tmp_path):
    """Its class has them, whatever the loaded object says."""
    save_bert_tokenizer(tmp_path)
    load_tokenizer(str(tmp_path), max_length=37).save_pretrained(tmp_path)
    assert set(AutoTokenizer.from_pretrained(tmp_path)("x", "y")) == {"input_ids", "attention_mask"}


def test_a_tokenizer_of_prompts_starts_texts_and_does_not_end_them(tmp_path):
    """Whatever class it had: that of BERT would end them again when it is loaded. It needs no mask."""
    save_bert_tokenizer(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path), max_length=37)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer_of_prompts(tokenizer).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.apply_chat_template([{"role": "user", "content": "y x"}], tokenize=False) == "y x"
    assert loaded(["x", "y x"], padding=True)["input_ids"] == [[0, 2, 5], [2, 6, 5]]
    assert (loaded.model_max_length, loaded.model_input_names) == (37, ["input_ids", "attention_mask"])
    assert (loaded.pad_token, loaded.mask_token, loaded.sep_token) == ("[PAD]", "[MASK]", "[SEP]")
    words = Tokenizer(WordLevel({"<s>": 0, "x": 1}, unk_token="x"))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="<s>").save_pretrained(tmp_path / "few")
    assert load_tokenizer(str(tmp_path / "few"), max_length=37, is_masked=False).pad_token is None


def test_missing_tokens_are_named(tokenizer, tmp_path):
    roles = {"bos_token": "<s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **roles).save_pretrained(tmp_path)
    message = (
        f"tokenizer {tmp_path}: expected tokens for mask, padding, start (bos or cls), end (eos or sep); "
        "got no mask and no end (eos or sep)"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_tokenizer(str(tmp_path), max_length=67)


@pytest.mark.parametrize("name", ["damaged", "nobody/nothing"])
def test_no_tokenizer(saved, name):
    if name == "damaged":
        name = str(saved)
        (saved / "tokenizer.json").write_text("{")
    message = f"tokenizer {name}: expected a folder with tokenizer.json, or an id on the hub: "
    with pytest.raises(InputError, match=f"^{re.escape(message)}[^\n]+$"):
        load_tokenizer(name, max_length=67)


def test_fingerprint_is_of_the_rules_and_not_of_the_latest_call(tokenizer, monkeypatch):
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["x", "x y z"], padding=True, truncation=True, max_length=3)
    assert tokenizer_fingerprint(tokenizer) == before
    other = train_tokenizer(["other text"] * 7, vocab_size=281, max_length=67)
    assert tokenizer_fingerprint(other) != before
    monkeypatch.setattr(tokenizer, "truncation_side", "left")
    assert tokenizer_fingerprint(tokenizer) != before


def test_short_texts_are_whole_and_in_order(tokenizer):
    texts = [("the dog", None), ("", None), ("fox", None)] * 100
    encoded = list(Encoder(tokenizer, 30)(texts))
    assert [tokenizer.decode(text.windows[0]["input_ids"], skip_special_tokens=True) for text in encoded] == [
        text for text, _ in texts
    ]
    assert all(text.lost == 0 for text in encoded)
    assert [text.tokens for text in encoded] == [len(text.windows[0]["input_ids"]) for text in encoded]
    assert set(encoded[0].windows[0]) == {"input_ids"}


def test_a_text_without_tokens_is_one_padding_token(tmp_path):
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, model_input_names=["input_ids", "token_type_ids"])
    empty, other = Encoder(tokenizer, 7)([("", None), ("w1 w2", None)])
    assert empty.windows[0] == {"input_ids": [tokenizer.pad_token_id], "token_type_ids": [0]}
    assert other.windows[0]["token_type_ids"] == [0, 0]


def test_longer_texts_are_cut_and_the_loss_is_counted(tokenizer):
    (text,) = Encoder(tokenizer, 11)([(LONG, None)])
    whole = tokenizer(LONG)["input_ids"]
    assert text.windows[0]["input_ids"] == [*whole[:10], tokenizer.eos_token_id]
    assert (text.tokens, text.lost) == (11, len(whole) - 11)


def test_of_two_texts_the_longer_one_is_cut_first_and_both_need_room(tokenizer):
    (text,) = Encoder(tokenizer, 20)([("the fox", LONG)])
    kept = tokenizer.decode(text.windows[0]["input_ids"], skip_special_tokens=True)
    assert kept.startswith("the fox") and len(text.windows[0]["input_ids"]) == 20 and text.lost > 0
    special = tokenizer.num_special_tokens_to_add(pair=True)
    message = rf"^max_length: expected at least {special + 1} for pairs of texts, got {special}$"
    with pytest.raises(InputError, match=message):
        next(Encoder(tokenizer, special)([("fox", LONG)]))
    with pytest.raises(InputError, match=r"^max_length: expected at least 3, got 2$"):
        Encoder(tokenizer, 2)
