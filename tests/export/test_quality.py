"""Quality measures of int8: each number against a plain computation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linformer_cli.settings import EvaluateSettings, ExportSettings
from linformer_kit.export.exportable import load
from linformer_kit.export.folder import quality_of
from linformer_kit.inference.evaluate import evaluate
from tests.export.conftest import TEXTS, linformer


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def made(class_name, tmp_path, validation_file, **more):
    """The source, and its quality by name and function."""
    model = linformer(class_name, tmp_path / "model")
    source = load(str(model))
    settings = ExportSettings(model=str(model), out="", validation_file=str(validation_file), **more)
    return source, *quality_of(settings, source)


def test_accuracy_is_that_of_evaluate(tmp_path):
    path = tmp_path / "labelled.jsonl"
    rows = [{"said": text, "class": f"LABEL_{n % 3}"} for n, text in enumerate(TEXTS * 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, name, measure = made(
        "LinformerForSequenceClassification", tmp_path, path, text_column="said", label_column="class"
    )
    settings = EvaluateSettings(
        model=str(tmp_path / "model"),
        validation_file=[str(path)],
        text_column="said",
        label_column="class",
        bf16="false",
    )
    assert name == "accuracy" and measure(source.exportable.run) == evaluate(settings)["metrics"]["accuracy"]

    def first_class(inputs):
        return [np.eye(3)[[0] * len(inputs["input_ids"])]]

    assert measure(first_class) == pytest.approx(1 / 3)


def test_an_encoder_is_compared_with_float32(tmp_path, texts):
    source, name, measure = made("LinformerModel", tmp_path, texts)
    assert name == "cosine with float32" and measure(source.exportable.run) == pytest.approx(1)

    def nonsense_in_padding(inputs):
        real = inputs["attention_mask"][..., None] == 1
        return [np.where(real, output, 1e6) for output in source.exportable.run(inputs)]

    assert measure(nonsense_in_padding) == pytest.approx(1)
    assert measure(lambda inputs: [-output for output in source.exportable.run(inputs)]) == pytest.approx(-1)
