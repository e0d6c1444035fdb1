"""A new head starts at a logistic regression on the encoder's vectors."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoModelForSequenceClassification

from linformer_cli.settings import FinetuneSettings
from linformer_kit import linearize
from linformer_kit.interop.checkpoints import pooling_mode
from linformer_kit.training.finetune import finetune
from linformer_kit.training.regression import STRENGTHS, regressions
from tests.conftest import write_model, write_teacher

WORDS = "number was good bad 0 1 2 3 4 5 6 7 8 9"


def vectors(texts: int = 60, width: int = 5) -> np.ndarray:
    """Random vectors of unequal scales; the last number is next to zero in all, as three of MiniLM's are."""
    scales = np.append(10.0 ** np.arange(width - 1), 1e-33)
    return (np.random.default_rng(3).normal(size=(texts, width)) * scales + 1).astype(np.float32) - (scales < 1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("balanced", [False, True])
def test_rows_are_those_of_the_scaled_regression(classes, balanced):
    found = vectors()
    targets = np.random.default_rng(0).integers(classes, size=len(found))
    fits = list(regressions(found, targets, classes, balanced=balanced, biased=True))
    assert [fit.strength for fit in fits] == list(STRENGTHS)
    model = LogisticRegression(C=0.1, class_weight="balanced" if balanced else None, max_iter=1000, tol=1e-8)
    size = np.sqrt(np.square(found.astype(np.float64)).mean(axis=0))
    size[-1] = np.inf
    scaled = (found - found.mean(axis=0, dtype=np.float64)) / size
    logits = torch.from_numpy(found @ fits[-2].weight.T + fits[-2].bias)
    expected = torch.from_numpy(model.fit(scaled, targets).predict_proba(scaled)).float()
    torch.testing.assert_close(logits.softmax(-1), expected, atol=2e-3, rtol=0)
    assert not fits[-1].weight[:, -1].any()


def test_dropout_of_numbers_that_hardly_differ_changes_little():
    """As those of an encoder with random weights."""
    generator = np.random.default_rng(0)
    found = (1 + 1e-4 * generator.normal(size=(60, 31))).astype(np.float32)
    fit = list(regressions(found, generator.integers(2, size=60), 2, balanced=False, biased=True))[-1]
    dropped = found * (generator.random(found.shape) > 0.1) / 0.9
    assert np.abs((dropped - found) @ fit.weight.T).max() < 1


def test_each_class_of_multi_label_texts_has_its_own_and_all_or_none_is_no_error():
    found = vectors()
    targets = np.stack([found[:, 0] > 1, np.zeros(60), np.ones(60)], axis=1).astype(np.float32)
    weight, bias = list(regressions(found, targets, 3, balanced=False, biased=True))[-1][1:]
    logits = found @ weight.T + bias
    assert np.mean((logits > 0) == targets) > 0.95 and not weight[1:].any()


def test_a_class_without_texts_is_never_the_answer_and_a_layer_without_bias_gets_none():
    found, targets = vectors(), np.arange(60) % 2 * 2
    for biased in (True, False):
        for fit in regressions(found, targets, 3, balanced=False, biased=biased):
            assert biased or not fit.bias[[0, 2]].any()
            assert not biased or 1 not in (found @ fit.weight.T + fit.bias).argmax(axis=1)


def write_texts(path: Path, multi_label: bool = False) -> str:
    rows = [{"text": f"number {n} was {'good' if n % 2 else 'bad'}", "label": ["x", "y"][n % 2]} for n in range(40)]
    if multi_label:
        rows = [row | {"label": [row["label"], "z"] if n % 3 else []} for n, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_encoder(folder: Path, kind: str) -> Path:
    if kind == "own":
        return write_model(folder, WORDS, norm_first=True)
    family = kind.removeprefix("linear ")
    write_teacher(folder, WORDS, f"{family}Model", **({"hidden_size": 30} if family == "ModernBert" else {}))
    if kind.startswith("linear"):
        linearize(AutoModel.from_pretrained(folder), projected_dim=5).save_pretrained(folder)
    return folder


def trained(folder: Path, texts: str, **more: object) -> tuple[dict, Path]:
    usual = {"max_steps": 1, "learning_rate": 0.0, "report_to": "none", "dtype": "float32"}
    files = {"train_file": [texts], "validation_file": [texts], "output_dir": str(folder / "out")}
    return finetune(FinetuneSettings(model=str(folder), **{**usual, **files, **more}))


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["own", "linear Bert", "linear Roberta", "Bert", "linear DistilBert"])
@pytest.mark.parametrize("multi_label", [False, True])
def test_training_starts_at_the_regression_and_the_classifier_is_loaded_again(kind, multi_label, tmp_path, caplog):
    """A rate of 0 changes no weight, so that the result is the start."""
    folder, texts = write_encoder(tmp_path / "model", kind), write_texts(tmp_path / "t.jsonl", multi_label)
    with caplog.at_level(logging.INFO):
        results, out = trained(folder, texts)
    of_regression = re.search(r"logistic regression on .* \(40 training texts.*\): validation (.*)", caplog.text)
    assert of_regression
    name = "micro_f1" if multi_label else "accuracy"
    update, value = results["curve"][name][0]
    assert update == 0 and f"{name} {value:.4f}" in of_regression[1]
    assert results["metrics"][name] == pytest.approx(results["curve"][name][0][1])
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert getattr(model.config, "classifier_pooling", None) == (None if kind == "Bert" else "mean")


@pytest.mark.e2e
def test_a_head_at_random_is_that_of_its_family_and_a_resumed_training_keeps_its_own(tmp_path, caplog):
    folder, texts = write_encoder(tmp_path / "model", "linear Roberta"), write_texts(tmp_path / "t.jsonl")
    with caplog.at_level(logging.INFO):
        _, out = trained(folder, texts, head_start="random")
        assert "regression" not in caplog.text
        assert "classifier_pooling" not in json.loads((out / "config.json").read_text())
        trained(folder, texts, output_dir=str(tmp_path / "again"))
        caplog.clear()
        trained(folder, texts, output_dir=str(tmp_path / "again"), resume=True)
    assert "resuming from" in caplog.text and "regression" not in caplog.text


@pytest.mark.parametrize("kind", ["own", "linear Bert", "linear Roberta", "linear DistilBert"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_last_layer_maps_the_pooled_vector(kind, pooling, tmp_path):
    """Beside padding, saved and loaded, with a loss, and as a tuple."""
    folder = write_encoder(tmp_path, kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, classifier_pooling=pooling).eval()
    model.save_pretrained(folder / "saved")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "saved").eval()
    ids, mask = torch.arange(6, 13).expand(2, 7) % 12, torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    labels = torch.tensor([2, 0])
    with torch.no_grad():
        hidden = model.base_model(ids, mask).last_hidden_state
        found = model(ids, attention_mask=mask, labels=labels)
        as_tuple = model(ids, mask, return_dict=False)
    rows = [each[:length] for each, length in zip(hidden, (7, 4), strict=True)]
    expected = torch.stack([row[0] if pooling == "cls" else row.mean(0) for row in rows])
    last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    torch.testing.assert_close(found.logits, last(expected))
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(found.logits, labels))
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], found.logits)


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_pooling_as_the_folder_says(content, mode, tmp_path):
    assert pooling_mode(str(tmp_path)) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 4, **content}))
    modules = [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert pooling_mode(str(tmp_path)) == mode
