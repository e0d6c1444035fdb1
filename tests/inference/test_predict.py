"""`linformer predict`: answers in the order of the rows, `--resume`, long texts, bad input."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import pipeline

from linformer_cli.cli import main
from linformer_cli.settings import PredictSettings
from linformer_kit import LinformerConfig, LinformerForSequenceClassification
from linformer_kit.inference import predict
from linformer_kit.inference.batches import TextModel
from tests.conftest import fail, randomise, write_model
from tests.export.conftest import linformer


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A classifier with random weights."""
    place, words = tmp_path_factory.mktemp("classifier") / "model", "number was good bad fine 0 1 2 3 4 5 6 7 8 9"
    folder = write_model(place, words)
    config = LinformerConfig.from_pretrained(folder, num_labels=2, id2label={0: "happy", 1: "unhappy"})
    randomise(LinformerForSequenceClassification(config)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Texts of four words, with classes."""
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    rows = [f"number {number} was {('good,happy', 'bad,unhappy')[number % 2]}\n" for number in range(60)]
    path.write_text("text,label\n" + "".join(rows))
    return path


@pytest.mark.parametrize("suffix", ["tsv", "txt"])
def test_each_row_is_answered_in_order(model, tmp_path, suffix, capsys):
    texts = [f"number {number} was {word}" for number, word in enumerate(["good", "bad", "fine"] * 7)] + [""]
    path = tmp_path / f"texts.{suffix}"
    if suffix == "txt":
        path.write_text("".join(f"{text}\n" for text in texts))
    else:
        path.write_text("other\ttext\n" + "".join(f"1\t{text}\n" for text in texts))
    main(["predict", str(model), str(path)])
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["row"] for row in rows] == list(range(1, len(texts) + 1))
    assert shown.err.startswith(f"{len(texts)} texts: ")
    classify = pipeline("text-classification", model=str(model), top_k=None)
    for text, row in zip(texts, rows, strict=True):
        expected = {answer["label"]: answer["score"] for answer in classify(text)[0]}
        assert row["probabilities"] == pytest.approx(expected, abs=1e-5)
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)


def test_a_table_comes_through_a_pipe(model, texts, tmp_path, capsys):
    """Read twice by `predict`, in any format, also by the column of the fine-tuning."""
    trained = shutil.copytree(model, tmp_path / "trained")
    config = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(config | {"trained_columns": {"text": "body"}}))
    (trained / "manifest.json").unlink(missing_ok=True)
    body = texts.read_bytes().replace(b"text,", b"body,", 1)
    for folder, content in ((model, texts.read_bytes()), (trained, body)):
        (tmp_path / "some.csv").write_bytes(content)
        main(["predict", str(folder), str(tmp_path / "some.csv")])
        expected = capsys.readouterr().out
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        main(["predict", str(folder), f"/dev/fd/{reader}"])
        os.close(reader)
        assert capsys.readouterr().out == expected != ""


def test_an_interrupted_run_goes_on(model, texts, tmp_path, monkeypatch, capsys):
    """After the last group that was recorded, with the same texts in each batch; the counts are those of all texts."""
    monkeypatch.setattr(TextModel, "_group_tokens", 3)  # a group is a batch
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    options = ["--batch_size", "7", "--max_length", "5", "--out"]
    main(["predict", str(model), str(texts), *options, str(whole)])
    said = capsys.readouterr().err
    assert [json.loads(line)["row"] for line in whole.read_text().splitlines()] == list(range(1, 61))
    labels = [json.loads(line)["label"] for line in whole.read_text().splitlines()]
    counts = ", ".join(f"{labels.count(name)} {name}" for name in ("happy", "unhappy"))
    assert said == f"60 texts: {counts}; 60 truncated\n"
    lines, calls = predict.Classifier.lines, []

    def interrupted(self, group, done):
        calls.append(len(group.rows))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return lines(self, group, done)

    monkeypatch.setattr(predict.Classifier, "lines", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(["predict", str(model), str(texts), *options, str(cut)])
    assert not cut.exists() and "expected a new file" in fail(capsys, "predict", model, texts, "--out", cut)
    part = tmp_path / "cut.jsonl.part"
    part.write_text(part.read_text() + '{"row": 22, "lab')
    for _ in range(2):  # the second time nothing is left to do
        main(["predict", str(model), str(texts), *options, str(cut), "--resume"])
        assert capsys.readouterr().err == said and cut.read_bytes() == whole.read_bytes() and not part.exists()
        assert calls == [7] * 9 + [4]


@pytest.mark.parametrize("command", ["predict", "evaluate", "embed", "export", "linearize", "distill", "fill-mask"])
def test_an_exported_model_is_named(command, texts, tmp_path, capsys):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "config.json").write_text("{}")
    (tmp_path / "served" / "model.onnx").touch()
    out = tmp_path / "out"
    others = {
        "embed": [texts, "--out", tmp_path / "out.npy"],
        "distill": ["--train_file", texts, "--output_dir", out],
        "predict": [texts],
        "evaluate": [texts],
    }
    error = fail(capsys, command, tmp_path / "served", *others.get(command, [out]))
    assert f"expected a model for PyTorch in {tmp_path / 'served'}, got an exported one (model.onnx)" in error


def test_outputs_that_are_not_finite_are_no_result(model, texts, tmp_path, capsys):
    broken = LinformerForSequenceClassification.from_pretrained(model)
    torch.nn.init.constant_(broken.classifier.out_proj.weight, 3e38)
    shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("manifest.json"))
    broken.save_pretrained(tmp_path / "model")
    error = fail(capsys, "predict", tmp_path / "model", texts)
    assert "model: expected finite outputs, got NaN or infinite ones" in error


def test_long_texts_are_truncated(model, tmp_path, capsys):
    path = tmp_path / "labelled.jsonl"
    texts = ["number 1 was good " * 30, "bad"]
    path.write_text("".join(json.dumps({"text": text, "label": "happy"}) + "\n" for text in texts))
    main(["predict", str(model), str(path)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["lost_tokens"] > 50 and "lost_tokens" not in rows[1]
    main(["evaluate", str(model), "--validation_file", str(path), "--output_dir", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert results["texts"]["cut"] == 1 and results["texts"]["lost_tokens"] == rows[0]["lost_tokens"]
    expected = -sum(math.log(row["probabilities"]["happy"]) for row in rows) / 2
    assert results["metrics"]["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{model}", "{texts}", "--text_column", "body"], "no column 'body' (text_column); it has 'text', 'label'"),
        (["{encoder}", "{texts}"], "model: expected a classifier (`linformer finetune` makes one), got LinformerForMaskedLM"),
        (["/no-model", "{texts}", "--out", "{texts}", "--resume"], "out: expected another file than that of the texts"),
        (["/no-model", "{texts}", "--out", "{old}"], "out: expected a new file, got"),
        (["/no-model", "{texts}", "--out", "."], "out: expected a file, got the folder ."),
        (["/no-model", "{texts}", "--out", ""], "out: expected a file, got the folder ."),
        (["{model}", "{header}"], "file: expected texts, got none in header.csv"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_the_texts_stay(model, texts, tmp_path, arguments, message, capsys):
    encoder = linformer("LinformerForMaskedLM", tmp_path / "encoder")
    (old := tmp_path / "old.jsonl").touch()
    (header := tmp_path / "header.csv").write_text("text,label\n")
    named = {"model": model, "texts": texts, "encoder": encoder, "old": old, "header": header}
    before = texts.read_text()
    with pytest.raises(SystemExit) as exit_:
        main(["predict", *(argument.format(**named) for argument in arguments)])
    shown = capsys.readouterr()
    assert exit_.value.code == 2 and message in shown.err and not shown.out
    assert texts.read_text() == before


def test_columns_of_the_fine_tuning_and_an_output_that_another_process_begins_first(tmp_path, monkeypatch):
    columns = {"text": "question1", "text_pair": "question2", "label": "is_duplicate"}
    fields = {"num_labels": 2, "trained_columns": columns}
    trained = linformer("LinformerForSequenceClassification", tmp_path / "model", **fields)
    (tmp_path / "dev.tsv").write_text("question1\tquestion2\tid\nwhat ?\twhy ?\t0\nwho ?\thow ?\t3\n")
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    asked = {"model": str(trained), "file": [str(tmp_path / "dev.tsv")], "out": str(output)}

    real_open = Path.open

    def begun_first(path, mode="r", **options):
        if mode == "xb":
            path.touch()
        return real_open(path, mode, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", begun_first)
        with pytest.raises(FileExistsError):
            predict.main(PredictSettings(**asked))
    assert part.exists() and not output.exists()
    predict.main(PredictSettings(**asked, resume=True))  # as after a kill before anything is recorded
    assert len(output.read_text().splitlines()) == 2
