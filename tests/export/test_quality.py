"""Quality measures of int8: each number against a plain computation."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linformer_kit.data.labelled import columns_of_task
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.tasks import TASKS
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


def test_masked_token_loss_is_the_mean_over_all_masked_tokens(tmp_path, texts):
    source, name, measure = made("LinformerForMaskedLM", tmp_path, texts)
    masker = BlockMasker(source.tokenizer, seed=0, probability=0.15)
    blocks = [masker(np.array(source.tokenizer(t)["input_ids"]), epoch=0, index=n) for n, t in enumerate(TEXTS)]
    with torch.no_grad():
        logits = torch.cat([source.exportable.model(block["input_ids"][None]).logits[0] for block in blocks])
    expected = F.cross_entropy(logits.double(), torch.cat([block["labels"] for block in blocks]))
    assert name == "masked token loss" and measure(source.exportable.run) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("LinformerModel", "cosine with float32"),
        ("LinformerForTokenClassification", "tokens as in float32"),
        ("LinformerForQuestionAnswering", "answers as in float32"),
    ],
)
def test_others_are_compared_with_float32(class_name, expected, tmp_path, texts):
    source, name, measure = made(class_name, tmp_path, texts)
    assert name == expected and measure(source.exportable.run) == pytest.approx(1)

    def nonsense_in_padding(inputs):
        real = inputs["attention_mask"] == 1
        outputs = source.exportable.run(inputs)
        return [np.where(real[(...,) + (None,) * (output.ndim - 2)], output, 1e6) for output in outputs]

    def negative(inputs):
        return [-output for output in source.exportable.run(inputs)]

    assert measure(nonsense_in_padding) == pytest.approx(1)
    assert measure(negative) == pytest.approx(-1) if class_name == "LinformerModel" else measure(negative) < 0.5


def test_the_first_texts_alone(tmp_path, texts):
    source, _, measure = made("LinformerModel", tmp_path, texts, max_eval_samples=2)
    rows = []

    def run(inputs):
        rows.append(len(inputs["input_ids"]))
        return source.exportable.run(inputs)

    measure(run)
    assert rows == [2]
