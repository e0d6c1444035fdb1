"""Which weights of a classifier's head `linformer finetune` keeps, and what it says of those that are new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from linformer_cli.settings import FinetuneSettings
from linformer_kit import linearize
from linformer_kit.data.labelled import load_labelled
from linformer_kit.training.finetune import load_encoder, trained_classes
from tests.conftest import values_of, write_model, write_teacher

WORDS = "number was good bad 0 1 2 3 4 5 6 7 8 9"
CLASSES = ("c", "a", "b")
# Families and their fields; weights with a row for each class; weights of the head besides.
FAMILIES = {
    "Roberta": ({}, "classifier.out_proj", "classifier.dense"),
    "DistilBert": ({"dim": 33, "hidden_dim": 29, "n_heads": 3, "n_layers": 2}, "classifier", "pre_classifier"),
    "Electra": ({"embedding_size": 33}, "classifier.out_proj", "classifier.dense"),
    "Bert": ({}, "classifier", "bert.pooler.dense"),
    "ModernBert": ({"cls_token_id": 0, "sep_token_id": 2, "hidden_size": 30}, "classifier", "head.dense"),
}


def classifier(folder: Path, family: str, **fields: object) -> Path:
    labels = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: n for n, name in enumerate(CLASSES)}}
    write_teacher(folder, WORDS, f"{family}ForSequenceClassification", **FAMILIES[family][0], **{**labels, **fields})
    return folder


def load(folder: Path, classes: list[object], place: Path):
    """What `linformer finetune` trains on texts of these classes, and its classes."""
    rows = [{"text": f"number {number}", "label": value} for number, value in enumerate(classes * 2)]
    file = place / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = FinetuneSettings(model=str(folder), train_file=[str(file)], validation_file=[str(file)])
    texts = load_labelled(settings, trained_classes(AutoConfig.from_pretrained(folder)))
    return load_encoder(settings, texts.labels, seed=7).model, texts


def changed(folder: Path, model) -> set[str]:
    """Names of weights that are not those of the files."""
    before, now = load_file(folder / "model.safetensors"), model.state_dict()
    return {name for name, tensor in now.items() if name not in before or not torch.equal(tensor, before[name])}


ALL, SOME = (["a", "b", "c"], 1), (["b", "c"], 2)
SEVERAL, CAPITALS = ([["c", "b"], ["a"]], [1.0, 0.0, 1.0]), (["A", "B"], 1)


@pytest.mark.parametrize(("family", "classes"), values_of(FAMILIES, (ALL, SOME, SEVERAL, CAPITALS)))
def test_a_classifier_of_these_classes_is_kept_whole(family, classes, tmp_path):
    classes, target = classes
    folder = classifier(tmp_path, family)
    model, texts = load(folder, classes, tmp_path)
    assert not changed(folder, model)
    assert texts.labels.names == tuple(model.config.id2label.values()) == CLASSES
    assert texts.labels.target(texts.train[0], column="label") == target


@pytest.mark.parametrize(("family", "classes"), values_of(FAMILIES, (["a", "b", "c", "d"], ["x", "y", "z"])))
def test_only_rows_of_classes_are_new_where_texts_have_other_classes(family, classes, tmp_path, caplog):
    folder, (_, rows, _) = classifier(tmp_path, family), FAMILIES[family]
    model, texts = load(folder, classes, tmp_path)
    assert changed(folder, model) <= {f"{rows}.weight", f"{rows}.bias"} and f"{rows}.weight" in changed(folder, model)
    assert texts.labels.names == tuple(classes)
    why = "the model's classes are 'c', 'a', 'b', those of the texts are others"
    assert f"new weights, which are random: {rows}.bias, {rows}.weight; {why}" in caplog.text


@pytest.mark.parametrize(("family", "kind"), values_of(FAMILIES, ("ForMaskedLM", "ForTokenClassification")))
def test_only_what_the_files_lack_is_new(family, kind, tmp_path, caplog):
    """Of ModernBERT's head, `dense` and `norm` are pretrained; a row for each class of tokens is none of texts."""
    fields, rows, rest = FAMILIES[family]
    write_teacher(tmp_path, WORDS, f"{family}{kind}", **fields)
    saved = load_file(tmp_path / "model.safetensors")
    model, _ = load(tmp_path, ["x", "y"], tmp_path)
    lacking = {name for name in model.state_dict() if name not in saved}
    assert changed(tmp_path, model) <= lacking | {f"{rows}.weight", f"{rows}.bias"}
    assert (f"{rest}.weight" in lacking) == (family != "ModernBert")
    assert f"{rows}.weight; the model ({family}{kind}) has no classes" in caplog.text or "pre_classifier" in caplog.text


def test_classes_without_names_are_numbers(tmp_path, caplog):
    folder = classifier(tmp_path, "Bert", id2label={n: f"LABEL_{n}" for n in range(3)})
    model, texts = load(folder, [2, 1], tmp_path)
    assert not changed(folder, model) and texts.labels.target(texts.train[0], column="label") == 2
    assert "class '2' is taken for the model's 'LABEL_2'" in caplog.text


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        ({"id2label": {0: "x"}, "problem_type": "regression"}, ["x", "y"]),
        ({"id2label": {0: "xx", 1: "XX", 2: "y"}}, ["Xx", "y"]),
        ({"id2label": {0: "xx", 1: "y"}}, ["XX", "Xx"]),
    ],
)
def test_a_head_that_may_mean_others_is_new(fields, classes, tmp_path):
    """A regression, and names that differ in capitals alone, of the model or of the texts."""
    folder = classifier(tmp_path, "Bert", **fields)
    model = load(folder, classes, tmp_path)[0]
    assert "classifier.weight" in changed(folder, model) and model.num_labels == 2


@pytest.mark.parametrize("kind", ["linear", "own"])
def test_classifiers_of_this_package_are_kept(kind, tmp_path):
    folder = tmp_path / "model"
    if kind == "linear":
        classifier(folder, "Roberta")
        linearize(AutoModelForSequenceClassification.from_pretrained(folder), projected_dim=5).save_pretrained(folder)
    else:
        write_model(folder, WORDS)
        classes = {"num_labels": 3, "id2label": dict(enumerate(CLASSES))}
        AutoModelForSequenceClassification.from_pretrained(folder, **classes).save_pretrained(folder)
    model, texts = load(folder, ["b", "a"], tmp_path)
    assert not changed(folder, model) and texts.labels.names == CLASSES
