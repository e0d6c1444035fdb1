"""Quality measures of int8: each number against a plain computation."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from linformer_kit.data.labelled import columns_of_task
from linformer_kit.data.tasks import TASKS
from linformer_kit.errors import InputError
from linformer_kit.export.exportable import load
from linformer_kit.export.quality import quality_of
from linformer_kit.inference.evaluate import evaluate
from linformer_kit.settings import EvaluateSettings, ExportSettings
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


def test_a_classifier_of_a_task_is_measured_by_the_numbers_of_its_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(TEXTS)))
    names = dict(enumerate(TASKS["sst2"].labels))
    columns = dataclasses.asdict(columns_of_task(TASKS["sst2"], in_files=False))
    fields = {"num_labels": 2, "id2label": names, "trained_columns": columns}
    model = linformer("LinformerForSequenceClassification", tmp_path / "model", **fields)
    settings = ExportSettings(model=str(model), out="", validation_file=str(path))
    name, measure = quality_of(settings, load(str(model)))
    assert name == "accuracy"
    assert measure(lambda inputs: [np.eye(2)[[0] * len(inputs["input_ids"])]]) == pytest.approx(2 / 3)


def test_an_encoder_is_compared_with_float32(tmp_path, texts):
    source, name, measure = made("LinformerModel", tmp_path, texts)
    assert name == "cosine with float32" and measure(source.exportable.run) == pytest.approx(1)

    def nonsense_in_padding(inputs):
        real = inputs["attention_mask"][..., None] == 1
        return [np.where(real, output, 1e6) for output in source.exportable.run(inputs)]

    assert measure(nonsense_in_padding) == pytest.approx(1)
    assert measure(lambda inputs: [-output for output in source.exportable.run(inputs)]) == pytest.approx(-1)


def test_other_heads_are_not_measured(tmp_path, texts):
    with pytest.raises(InputError, match="validation_file: expected none for a masked language model, got"):
        made("LinformerForMaskedLM", tmp_path, texts)


def test_the_first_texts_alone(tmp_path, texts):
    source, _, measure = made("LinformerModel", tmp_path, texts, max_eval_samples=2)
    rows = []

    def run(inputs):
        rows.append(len(inputs["input_ids"]))
        return source.exportable.run(inputs)

    measure(run)
    assert rows == [2]
