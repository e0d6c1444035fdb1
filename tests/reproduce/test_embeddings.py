"""Sentence embedders beside the first of them, at a tiny size."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

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
    assert all(0 <= each["same_nearest"] <= 1 for each in records) and records[0]["same_nearest"] == 1
    assert all(each["lowest"] > 0.999 and each["texts"] == 4 for each in records if each["name"] == "teacher")
    short, long = (each for each in records if each["name"] == "student")
    assert (short["n"], long["n"]) == (5, LENGTH) and 0 < long["lowest"] <= long["cosine"] < 0.9999
    shown = capsys.readouterr().out
    assert f"| model | 5 tokens | {LENGTH} tokens |" in shown
    assert "| teacher | 1.0000 (1.0000) | 1.0000 (1.0000) |" in shown


@pytest.mark.e2e
def test_what_was_exported_is_compared_too(tmp_path, monkeypatch, capsys):
    """A file whose vectors are those of the model, longer and in one number without its sign."""
    teacher = write_teacher(tmp_path / "teacher", "it 's good bad train dev 0 1 2 3 text", "RobertaModel")
    (tmp_path / "texts.txt").write_text("it 's good bad 0 1 train text dev 2 3 " * 40)
    sentences = embeddings.load(str(teacher), "float32", 2).sentences

    def runner(path, dtype):
        assert path == tmp_path / "served" / "model.onnx" and dtype == "int8"

        def run(inputs):
            assert set(inputs) == {"input_ids", "attention_mask"}
            rows = sentences({name: torch.from_numpy(array) for name, array in inputs.items()})["sentence_embedding"]
            return [None, 3 * torch.cat([rows[:, :1].abs(), rows[:, 1:]], dim=1).detach().numpy()]

        return run

    monkeypatch.setattr(pytest.importorskip("linformer_kit.export.onnx_file"), "runner", runner)
    (tmp_path / "served").mkdir()
    content = {"inputs": ["input_ids", "attention_mask"], "outputs": ["last_hidden_state", "sentence_embedding"]}
    content["max_length"] = LENGTH
    (tmp_path / "served" / "export.json").write_text(
        json.dumps(content | {"settings": {"format": "onnx", "dtype": "int8"}})
    )
    options = ["--models", teacher, "--exported", tmp_path / "served", "--text_file", tmp_path / "texts.txt"]
    options += ["--precision", "float32", "--samples", 1, "--cosine_lengths", LENGTH]
    records = start(embeddings, tmp_path / "out", *options)["records"]
    assert [each["name"] for each in records] == ["teacher", "served"]
    assert 0.5 < records[1]["cosine"] < 0.9999
    content["outputs"] = ["logits"]
    (tmp_path / "served" / "export.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit):
        start(embeddings, tmp_path / "other", *options)
    assert "exported: expected folders of `linformer export` with an embedder, got" in capsys.readouterr().err


def test_the_nearest_other_row():
    assert list(embeddings.nearest(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]]))) == [3, 2, 3, 2]
