"""Fine-tuning on long texts at a tiny size, and how texts are read in pieces."""

from __future__ import annotations

import pandas
import pytest
import torch
import transformers

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
    assert script.train(settings, "linear", data, regression, 1e-3, seed=3)["loss"] < 0.98 * trained["loss"]
    regression[0].scale_[7] = 1e-30
    script.start_at(model, regression)
    assert not model.classifier.weight[:, 7].any() and model.classifier.weight.isfinite().all()


def test_a_way_is_compared_with_the_first_whatever_is_equal():
    frozen = {"test_accuracy": 0.5, "right": [1, 0]}
    first, equal = (
        script.Measured("way", frozen, pandas.DataFrame(columns=["seed", "rate"]), script.NOT_MEASURED, 0.0)
        for _ in range(2)
    )
    assert script.cells(first, first)["more, %"] == ""
    assert script.cells(equal, first)["more, %"] == "+0.0 ± 0.0"


def test_pieces_have_all_tokens_and_the_special_ones(tmp_path):
    encoder = transformers.AutoModel.from_pretrained(write_encoder(tmp_path / "encoder")).eval()
    torch.manual_seed(0)
    classifier = script.Classifier(encoder, 3, limit=11, piece=6).eval()
    text = [0, *range(7, 16), 2]
    pieces = [[0, 7, 8, 9, 2], [0, 10, 11, 12, 2], [0, 13, 14, 15, 2]]
    assert classifier._pieces(text) == pieces == classifier._pieces([*text[:-1], 99, 2])
    assert classifier._pieces([0, 7, 2]) == [[0, 7, 2]]  # its last token once
    with torch.no_grad():
        hidden = torch.cat([encoder(input_ids=torch.tensor([piece])).last_hidden_state[0] for piece in pieces])
        expected = classifier.classifier(hidden.mean(dim=0))
        logits = classifier([text, [0, 7, 2]])
        torch.testing.assert_close(classifier.means([text])[0], hidden.mean(dim=0), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("way", "linear"), [("linear", [0, 1]), ("linear with full layers", [0])])
def test_layers_that_keep_full_attention(tmp_path, way, linear):
    encoder = write_encoder(tmp_path / "encoder")
    settings = script.Settings(model=str(encoder), data=[], n=127, full_layers=[1])
    classifier = script.build(settings, way, 3)
    names = [f"encoder.layer.{layer}.attention.self" for layer in linear]
    assert (classifier.encoder.config.linformer["layers"], classifier.limit) == (names, 127)
