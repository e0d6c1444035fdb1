"""`linformer distill`, end to end on a few texts, as a user calls it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from linformer_cli.cli import main
from tests.conftest import PRETRAIN_SIZES, encoded_lengths, fail_last_line, pad_always, write_teacher

pytestmark = pytest.mark.e2e

WORDS = "number was good bad fine poor 0 1 2 3 4 5 6 7 8 9 ."
LENGTH = PRETRAIN_SIZES["max_position_embeddings"]
OPTIONS = {"projected_dim": 5, "max_steps": 6, "eval_steps": 3, "save_steps": 3, "warmup_steps": 0, "logging_steps": 1}
OPTIONS |= {"per_device_train_batch_size": 2, "max_eval_samples": 5, "validation_fraction": 0.3}
OPTIONS |= {"report_to": "none", "dtype": "float32"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "other"))
        rows.writerows((f"number {number} was good", f"number {number + 1} was fine") for number in range(23))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = write_teacher(tmp_path_factory.mktemp("teacher") / "words", WORDS)
    pad_always(folder, 11)
    return folder


@pytest.fixture(scope="module")
def run(teacher, texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "student"
    distill(teacher, folder, train_file=texts)
    return folder


def distill(teacher: Path, folder: Path, **options: object) -> None:
    main(command(teacher, folder, **options))


def command(teacher: Path, folder: Path, **options: object) -> list[str]:
    named = OPTIONS | {"output_dir": folder} | options
    return ["distill", str(teacher), *(f"--{name}={value}" for name, value in named.items())]


def test_what_it_leaves(run):
    results = json.loads((run / "metrics.json").read_text())
    assert [update for update, _ in results["curve"]["error"]] == [0, 3, 6]
    assert results["layerwise_steps"] == 1 and results["updates"] == 6
    assert {"loss", "error", "cosine", "agreement"} == results["curve"].keys()
    assert results["student"]["projected_dim"] == 5 and results["teacher"]["layers"] == 3
    assert results["student"]["exact"] == {"sliding_window": 128, "global_tokens": 1}
    assert "projection mean_pool, sliding_window 128, global_tokens 1, " in (run / "metrics.md").read_text()
    assert "| cosine of mean embeddings |" in (run / "metrics.md").read_text()
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = AutoModelForMaskedLM.from_pretrained(run)
    assert type(model).__name__ == "LinearRobertaForMaskedLM"
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert tokenizer.model_max_length == LENGTH
    assert encoded_lengths(run, "bad", "bad " * 99) == [3, LENGTH]
    assert len(pipeline("fill-mask", model=model, tokenizer=tokenizer)("number <mask>")) == 5


def test_the_student_comes_nearer(teacher, texts, tmp_path):
    options = {"max_steps": 50, "eval_steps": 50, "learning_rate": 1e-3, "projected_dim": 2, "sliding_window": 3}
    distill(teacher, tmp_path / "student", train_file=texts, **options)
    curve = json.loads((tmp_path / "student" / "metrics.json").read_text())["curve"]
    assert curve["error"][-1][1] < 0.75 * curve["error"][0][1]
    assert curve["cosine"][-1][1] > curve["cosine"][0][1]


def test_a_classifier_learns_from_its_own_pairs(pairs, tmp_path):
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaForSequenceClassification", num_labels=3)
    distill(teacher, tmp_path / "student", train_file=pairs, text_pair_column="other")
    results = json.loads((tmp_path / "student" / "metrics.json").read_text())
    assert "16 texts to learn from, 7 for validation" in results["text"]["description"]
    assert 0 <= results["curve"]["agreement"][-1][1] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "student")
    assert pipeline("text-classification", model=model, tokenizer=tokenizer)("number 7")[0]["label"].startswith("LABEL")


def test_longer_than_its_teacher(teacher, texts, tmp_path):
    """Whose pieces are no longer than its tokenizer allows."""
    shutil.copytree(teacher, tmp_path / "teacher")
    AutoTokenizer.from_pretrained(teacher, model_max_length=LENGTH - 7).save_pretrained(tmp_path / "teacher")
    distill(tmp_path / "teacher", tmp_path / "student", train_file=texts, max_position_embeddings=4 * LENGTH)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "student")
    assert model(torch.full((1, 4 * LENGTH), 7)).logits.isfinite().all()
    found = json.loads((tmp_path / "student" / "metrics.json").read_text())["text"]
    assert (found["longest"], found["piece_length"]) == (4 * LENGTH, LENGTH - 7)


def test_a_classifier_that_reads_pieces_is_named(texts, tmp_path, caplog):
    """Distillation reads the first piece of a text only."""
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaForSequenceClassification", trained_pieces=True)
    distill(teacher, tmp_path / "student", train_file=texts, max_steps=2)
    assert f"reads long texts as pieces; it is distilled on their first {LENGTH} tokens only" in caplog.text


def test_what_sentence_transformers_needs_goes_along(texts, tmp_path, caplog):
    """SetFit's head does not, and is named."""
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    paths = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "sentence_transformers.models.Normalize"}
    modules = [{"path": path, "type": kind} for path, kind in paths.items()]  # 2_Normalize is empty, so not there
    (teacher / "modules.json").write_text(json.dumps(modules))
    (teacher / "1_Pooling").mkdir()
    (teacher / "1_Pooling" / "config.json").write_text("{}")
    (teacher / "sentence_bert_config.json").write_text('{"max_seq_length": 17, "do_lower_case": false}')
    (teacher / "model_head.pkl").write_bytes(b"")
    distill(teacher, tmp_path / "student", train_file=texts, max_steps=2)
    assert f"{teacher}: not in the result: model_head.pkl" in caplog.text
    assert json.loads((tmp_path / "student" / "modules.json").read_text()) == modules
    assert (tmp_path / "student" / "1_Pooling" / "config.json").read_text() == "{}"
    settings = json.loads((tmp_path / "student" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": LENGTH, "do_lower_case": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projected_dim": 99}, f"projected_dim: expected 1 to {LENGTH} (the longest sequence), got 99"),
        ({"adapter_rank": 16, "fully_shard": "true"}, "fully_shard: expected false with adapter_rank, got true"),
        ({"per_device_train_batch_size": 1000}, "per_device_train_batch_size: expected at most the"),
        ({"max_position_embeddings": 9}, f"max_position_embeddings: expected at least {LENGTH} for mode extend, got 9"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_leaves_nothing(options, message, teacher, texts, tmp_path, capsys):
    error = fail_last_line(capsys, *command(teacher, tmp_path / "student", **{"train_file": texts, **options}))
    assert message in error.splitlines()[-1]
    assert not (tmp_path / "student").exists()
