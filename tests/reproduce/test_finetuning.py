"""Fine-tuning on long texts at a tiny size, and how texts are read in pieces."""

from __future__ import annotations

import pandas
import pytest
import torch

from reproduce import finetuning as script
from tests.long_texts import article, write_encoder
from tests.reproduce.started import start


@pytest.mark.e2e
def test_results_and_their_table(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *arguments: function(*arguments))
    encoder, data = write_encoder(tmp_path / "encoder"), tmp_path / "texts"
    data.mkdir()
    rows = [{"text": article(number, sentences=12), "label": "ab"[number % 2]} for number in range(8)]
    for part in script.PARTS:
        pandas.DataFrame(rows).to_json(data / f"{part}.jsonl", orient="records", lines=True)
    sizes = ["--n", "127", "--epochs", "1", "--batch_size", "3", "--rates", "1e-4", "3e-4", "--seeds", "5", "6"]
    sizes += ["--full_layers", "1"]
    records = start(script, tmp_path / "out", "--model", encoder, "--data", data, *sizes)["records"]
    ways = [way for way in script.WAYS if way != "linear with adapter"]
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
        assert cost["forward"]["median_s"] > 0 and cost["train"]["median_s"] > 0 and cost["peak_bytes"] >= 0
    table = (tmp_path / "out" / "finetuning.md").read_text()
    assert all(f"| {script.NAMES.get(way, way)} | " in table for way in ways)


@pytest.mark.e2e
@pytest.mark.parametrize("classes", [2, 3])
def test_training_starts_at_the_regression(tmp_path, classes):
    settings = script.Settings(model=str(write_encoder(tmp_path / "encoder")), data=[], n=127, epochs=8)
    tokens, labels = [[0, *range(7, 9 + number), 2] for number in range(24)], [number % classes for number in range(24)]
    data = {part: script.Texts(tokens, labels) for part in script.PARTS}
    regression, found = script.frozen(settings, "linear", data)
    trained = script.train(settings, "linear", data, regression, 1e-12, seed=3)
    assert trained["test_accuracy"] == found["test_accuracy"] > 1.2 / classes
    model = script.build(settings, "linear", classes)
    script.start_at(model, regression)
    with torch.no_grad():
        means, logits = model.means(tokens), model(tokens)
    expected = torch.from_numpy(regression.predict_proba(means.numpy()))
    torch.testing.assert_close(logits.softmax(-1), expected.float(), rtol=0, atol=1e-4)
    regression[0].scale_[7] = 1e-30
    script.start_at(model, regression)
    assert not model.classifier.weight[:, 7].any() and model.classifier.weight.isfinite().all()
    regression[-1].coef_ *= 0  # far from the best, so that there is much to learn
    first, last = (script.train(settings, "linear", data, regression, rate, seed=3) for rate in (1e-12, 1e-2))
    assert last["loss"] < 0.98 * first["loss"]
