"""Spectra of several encoders, trained and not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from transformers import AutoTokenizer

from linformer_kit.data.files import text_files
from reproduce import figure1
from tests.conftest import write_corpus, write_model
from tests.reproduce.started import start


@pytest.mark.e2e
def test_a_small_run(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    corpus = write_corpus(tmp_path / "texts")
    for name in ("one", "two"):
        write_model(tmp_path / name, (corpus / "0.txt").read_text(), attention="full")
    options = ["--models", tmp_path / "one", tmp_path / "two", "--text_file", corpus, "--samples", 3]
    records = start(figure1, tmp_path / "out", *options, "--seed", 5)["records"]
    assert [(record["model"], record["untrained"]) for record in records] == [
        ("one", False), ("one", True), ("two", False), ("two", True),
    ]  # fmt: skip
    assert all(np.shape(record["cumulative"]) == (2, 3, 23) and record["samples"] == 3 for record in records)
    assert records[0]["cumulative"] != records[1]["cumulative"]
    text = capsys.readouterr().out
    assert "## one, random weights" in text and "share of the 5 largest" in text
    assert (tmp_path / "out" / "figure1.png").exists()


def test_sequences_are_taken_from_all_files_in_turn(tmp_path):
    """The first of each file, with start and end; then the second ones."""
    (tmp_path / "texts").mkdir()
    corpus = write_corpus(tmp_path / "texts")
    write_model(tmp_path / "model", (corpus / "0.txt").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    paths = sorted(corpus.glob("*.txt"))
    files = text_files([str(corpus)], field="text_file")
    found = [*itertools.islice(figure1.sequences(files, tokenizer, seq_len=23), len(paths) + 1)]
    ids = [tokenizer(path.read_text(), add_special_tokens=False)["input_ids"] for path in paths]
    assert tokenizer.convert_ids_to_tokens([0, 2]) == ["<s>", "</s>"]
    assert found[:-1] == [[0, *each[:21], 2] for each in ids]
    assert len(found[-1]) == 23 and found[-1] not in found[:-1]
