"""Quality measures of int8: each number against a plain computation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linformer_kit.data.masking import BlockMasker
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
        real = inputs["attention_mask"][..., None] == 1
        return [np.where(real, output, 1e6) for output in source.exportable.run(inputs)]

    assert measure(nonsense_in_padding) == pytest.approx(1)
    assert measure(negative) == pytest.approx(-1) if class_name == "LinformerModel" else measure(negative) < 0.5
