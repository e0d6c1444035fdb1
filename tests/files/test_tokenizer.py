"""The file of a tokenizer depends neither on its latest call nor on the file that it comes from."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from linformer_kit.files.tokenizer import save_tokenizer
from tests.conftest import encoded_lengths, pad_always
from tests.conftest import save_tokenizer as write_words


@pytest.mark.parametrize("call", [{}, {"padding": "max_length", "truncation": True, "max_length": 5}])
@pytest.mark.parametrize(("longest", "tokens"), [(17, 17), (10**30, 99)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_it_pads_only_when_asked_and_truncates_at_the_longest_input(tmp_path, side, longest, tokens, call):
    """On the tokenizer's side."""
    write_words(tmp_path)
    pad_always(tmp_path, 7)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, model_max_length=longest, truncation_side=side)
    if call:
        tokenizer("w7", **call)
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert encoded_lengths(tmp_path / "saved", "w7", "w7 " * 99) == [1, tokens]
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    ids = again.backend_tokenizer.encode("w8 " + "w7 " * 97 + "w9").ids
    assert (8 in ids, 9 in ids) == (side == "right" or tokens == 99, side == "left" or tokens == 99)
    assert again("w7 " * 9)["input_ids"] == [7] * 9 and again.model_max_length == longest
