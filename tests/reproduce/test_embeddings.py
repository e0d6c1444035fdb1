"""Sentence embedders beside the first of them, at a tiny size."""

from __future__ import annotations

import pytest

from linformer_cli.cli import main
from reproduce import embeddings
from tests.conftest import PRETRAIN_SIZES, write_teacher
from tests.reproduce.started import start

LENGTH = PRETRAIN_SIZES["max_position_embeddings"]


@pytest.mark.e2e
def test_cosine(tmp_path, capsys):
    teacher = write_teacher(tmp_path / "teacher", "it 's good bad train dev 0 1 2 3 text", "RobertaModel")
    main(["linearize", str(teacher), str(tmp_path / "student"), "--projected_dim", "3", "--sliding_window", "2"])
    (tmp_path / "texts").mkdir()
    for number in range(5):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"it 's good {number} " * 40)
    options = ["--models", teacher, tmp_path / "student", "--text_file", tmp_path / "texts", "--precision", "float32"]
    options += ["--samples", 4, "--cosine_lengths", 5, LENGTH]
    records = start(embeddings, tmp_path / "out", *options)["records"]
    assert all(each["lowest"] > 0.999 and each["texts"] == 4 for each in records if each["name"] == "teacher")
    short, long = (each for each in records if each["name"] == "student")
    assert (short["n"], long["n"]) == (5, LENGTH) and 0 < long["lowest"] <= long["cosine"] < 0.9999
    shown = capsys.readouterr().out
    assert f"| model | 5 tokens | {LENGTH} tokens |" in shown
    assert "| teacher | 1.0000 (1.0000) | 1.0000 (1.0000) |" in shown
