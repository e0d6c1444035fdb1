"""Spectra of several encoders, trained and not."""

from __future__ import annotations

import numpy as np
import pytest

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
