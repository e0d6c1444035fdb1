"""Sentences of a text."""

from __future__ import annotations

import pytest

from linformer_kit.data.sentences import split_sentences

TEXT = "  One two.  Is it 3.5? Yes!\n\nA heading\n\n\nThe end"
SENTENCES = ["One two.", "Is it 3.5?", "Yes!", "A heading", "The end"]


def test_sentences_keep_their_white_space():
    assert [sentence.strip() for sentence in split_sentences(TEXT)] == SENTENCES
    assert "".join(split_sentences(TEXT)).replace("\n", "") == TEXT.replace("\n", "")


@pytest.mark.parametrize("text", ["", " \n\n "])
def test_blank_texts_have_none(text):
    assert split_sentences(text) == []
