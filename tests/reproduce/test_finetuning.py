"""Fine-tuning on long texts at a tiny size."""

from __future__ import annotations

import pandas
import pytest

from reproduce import finetuning as script
from tests.long_texts import article, write_encoder
from tests.reproduce.started import start


@pytest.fixture
def given(tmp_path):
    """Options: an encoder and a data set."""
    encoder, data = write_encoder(tmp_path / "encoder"), tmp_path / "texts"
    data.mkdir()
    rows = [{"text": article(number, sentences=12), "label": "ab"[number % 2]} for number in range(8)]
    for part in script.PARTS:
        pandas.DataFrame(rows).to_json(data / f"{part}.jsonl", orient="records", lines=True)
    return ["--model", encoder, "--data", data, "--n", "127", "--epochs", "1", "--batch_size", "3"]


@pytest.mark.e2e
def test_an_interrupted_training_is_resumed(given, tmp_path, monkeypatch):
    finetune, classifier, resumed = script.finetune, script.Classifier, []

    def finetuned(settings):
        resumed.append(settings.resume)
        return finetune(settings)

    def interrupted(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "finetune", finetuned)
    monkeypatch.setattr(script, "Classifier", interrupted)
    options = [*given, "--ways", "linear", "--tasks", "accuracy", "--rates", "1e-4", "--seeds", "5"]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        start(script, tmp_path / "out", *options)
    monkeypatch.setattr(script, "Classifier", classifier)
    trained, words = start(script, tmp_path / "out", *options)["records"]
    assert (trained["way"], trained["updates"], words["way"]) == ("linear", 3, "words alone")
    assert resumed == [False, True] and not (tmp_path / "out" / "models").exists()


@pytest.mark.e2e
def test_results_and_their_table(given, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *arguments: function(*arguments))
    sizes = ["--rates", "1e-4", "3e-4", "--seeds", "5", "6", "--full_layers", "1"]
    records = start(script, tmp_path / "out", *given, *sizes)["records"]
    ways = [way for way in script.WAYS if way != "linear with adapter"]
    (words,) = (record for record in records if record["way"] == "words alone")
    assert words["test_accuracy"] == sum(words["right"]) / 8
    trained = [record for record in records if record["measured"] == "accuracy"]
    assert [record["way"] for record in trained] == [way for way in ways for _ in range(3)]
    for way in ways:
        first, second, other = (record for record in trained if record["way"] == way)
        best = max((first, second), key=lambda record: record["validation_accuracy"])
        assert (other["seed"], other["rate"]) == (6, best["rate"])
        assert {first["updates"], other["updates"]} == {3}
        (cost,) = (record for record in records if record["way"] == way and record["measured"] == "cost")
        (frozen,) = (record for record in records if record["way"] == way and record["measured"] == "frozen")
        assert len(frozen["right"]) == 8 and sum(frozen["right"]) / 8 == frozen["test_accuracy"]
        assert frozen["updates"] == 1 and first["tokens"] > 61
        assert cost["forward"]["median_s"] > 0 and cost["train"]["median_s"] > 0 and cost["peak_bytes"] >= 0
    table = (tmp_path / "out" / "finetuning.md").read_text()
    assert all(f"| {script.NAMES.get(way, way)} | " in table for way in [*ways, "words alone"])
    (cost,) = start(script, tmp_path / "cost", *given, "--ways", "linear", "--tasks", "cost")["records"]
    assert cost["measured"] == "cost" and "| linear | " in (tmp_path / "cost" / "finetuning.md").read_text()
