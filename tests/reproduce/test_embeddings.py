"""Sentence embedders beside the first of them, at a tiny size."""

from __future__ import annotations

import json

import pytest

from linformer_cli.cli import main
from reproduce import embeddings
from reproduce.common import run
from tests.conftest import PRETRAIN_SIZES, write_teacher

LENGTH = PRETRAIN_SIZES["max_position_embeddings"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    teacher = write_teacher(folder / "teacher", "it 's good bad train dev 0 1 2 3 text", "RobertaModel")
    student = folder / "student"
    main(["linearize", str(teacher), str(student), "--projected_dim", "3", "--sliding_window", "2"])
    return [str(teacher), str(student)]


@pytest.fixture
def start(models, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(5):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"it 's good {number} " * 40)

    def start(*options: object) -> list[dict]:
        common = ["--models", *models, "--output_dir", tmp_path / "out", "--precision", "float32", *options]
        run(embeddings.Settings, embeddings.measure, embeddings.table, arguments=list(map(str, common)))
        return json.loads((tmp_path / "out" / "embeddings.json").read_text())["records"]

    return start


def of(records: list[dict], measured: str, name: str) -> list[dict]:
    return [record for record in records if (record["measured"], record["name"]) == (measured, name)]


@pytest.mark.e2e
def test_cosine(start, tmp_path, capsys):
    options = ["--text_file", tmp_path / "texts", "--samples", 4, "--cosine_lengths", 5, LENGTH]
    records = start(*options)
    assert all(each["lowest"] > 0.999 and each["texts"] == 4 for each in of(records, "cosine", "teacher"))
    short, long = of(records, "cosine", "student")
    assert (short["n"], long["n"]) == (5, LENGTH) and 0 < long["lowest"] <= long["cosine"] < 0.9999
    shown = capsys.readouterr().out
    assert f"| model | 5 tokens | {LENGTH} tokens |" in shown
    assert "| teacher | 1.0000 (1.0000) | 1.0000 (1.0000) |" in shown
    assert start(*options) == records
