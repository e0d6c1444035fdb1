"""Embedders of sentence-transformers, linearised in place."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer

import linformer_kit as lk
from linformer_cli.cli import main
from tests.conftest import encoded_lengths, pad_always, skip_if_peft_is_too_old, write_teacher

WORDS = "number was good bad 0 1 2 3 4 5 6 7 8 9"
TEXTS = ["number 7 was good", "bad", "number 3"]


@pytest.fixture
def folder(tmp_path):
    """An embedder with a prompt and a low limit of tokens."""
    teacher = write_teacher(tmp_path / "teacher", WORDS, "RobertaModel")
    modules = [Transformer(str(teacher), max_seq_length=19), Pooling(33, "mean"), Normalize()]
    prompts = {"prompts": {"query": "number was "}, "default_prompt_name": "query"}
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(tmp_path / "embedder"))
    return tmp_path / "embedder"


def load(folder) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.mark.parametrize(("longest", "limit"), [pytest.param(None, 19, marks=pytest.mark.slow), (74, 74)])
def test_the_embedder_itself_becomes_linear(folder, tmp_path, longest, limit):
    model = load(folder)
    expected = model.encode(TEXTS)
    linear = lk.linearize(model, max_position_embeddings=longest)
    assert linear is model and type(model[0].model).__name__ == "LinearRobertaModel"
    assert (model.max_seq_length, model.tokenizer.model_max_length) == (limit, limit)
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=1e-5)
    model.save(str(tmp_path / "saved"))
    assert "import linformer_kit" in (tmp_path / "saved" / "README.md").read_text()
    again = load(tmp_path / "saved")
    assert again.max_seq_length == limit and type(again[0].model).__name__ == "LinearRobertaModel"
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-6)


def test_its_tokenizer_pads_only_when_asked(folder, tmp_path):
    pad_always(folder, 11)
    lk.linearize(load(folder)).save(str(tmp_path / "saved"))
    assert encoded_lengths(tmp_path / "saved", "bad", "bad " * 99) == [3, 19]


def test_nothing_changes_where_it_fails(folder):
    model = load(folder)
    with pytest.raises(
        lk.InputError, match=r"^model: expected .* for adapter all-MiniLM-L6-v2-512, got a RobertaModel"
    ):
        lk.linearize(model, adapter="all-MiniLM-L6-v2-512")
    with pytest.raises(lk.InputError, match=r"^sharing: expected 'none'"):
        lk.linearize(model, sharing="some", max_position_embeddings=74)
    assert type(model[0].model) is transformers.RobertaModel and model.max_seq_length == 19


def test_what_does_not_start_with_an_encoder_of_texts_is_rejected(folder):
    static = StaticEmbedding(transformers.AutoTokenizer.from_pretrained(folder), embedding_dim=5)
    cases = [
        (
            SentenceTransformer(modules=[static], device="cpu"),
            "that starts with a Transformer of texts, got StaticEmbedding",
        ),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "one of transformers, or a SentenceTransformer, got Sequential"),
    ]
    for model, message in cases:
        with pytest.raises(lk.InputError, match=rf"^model: expected .*{message}$"):
            lk.linearize(model)


def test_a_bare_encoder_says_once_what_it_leaves_behind(folder, tmp_path, caplog):
    for _ in range(2):
        lk.linearize(transformers.AutoModel.from_pretrained(folder))
    (message,) = warnings(caplog)
    assert message.startswith(f"{folder}: pooling, normalisation, prompts and max_seq_length")
    assert f"linearize(SentenceTransformer({str(folder)!r})) keeps them" in message
    lk.linearize(transformers.AutoModelForMaskedLM.from_pretrained(folder))  # no embedder
    teacher = transformers.AutoModel.from_pretrained(tmp_path / "teacher")
    shutil.rmtree(tmp_path / "teacher")  # where it came from is not needed
    lk.linearize(teacher)
    main(["linearize", str(folder), str(tmp_path / "linear")])  # keeps the files
    assert len(warnings(caplog)) == 1


def warnings(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("linformer_kit")]


def test_an_adapter_of_an_embedder_is_saved_with_the_linear_model(folder, tmp_path):
    model = lk.linearize(load(folder), 7, sliding_window=3)
    skip_if_peft_is_too_old()
    model.add_adapter(LoraConfig(target_modules=["query"], init_lora_weights=False))
    model.save(str(tmp_path / "saved"))
    again = load(tmp_path / "saved")
    assert type(again[0].model).__name__ == "LinearRobertaModel" and again.max_seq_length == 19
    np.testing.assert_allclose(again.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-6)
    expected = model.encode(TEXTS)
    shutil.copytree(tmp_path / "saved", tmp_path / "copy")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["linformer"]["projected_dim"] = 5
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))  # another model stands at the old place
    with pytest.raises(lk.InputError, match=r"copy.config\.json: expected the configuration of this model, linformer"):
        load(tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", tmp_path / "saved", dirs_exist_ok=True)
    np.testing.assert_allclose(load(tmp_path / "copy").encode(TEXTS), expected, rtol=0, atol=1e-6)
