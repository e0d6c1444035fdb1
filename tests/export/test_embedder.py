"""Embedders of sentence-transformers: a file with their pooling and what follows it, or a refusal that names a module."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from linformer_cli.cli import main
from linformer_kit.export.exportable import load
from tests.conftest import fail, randomise, save_bert_tokenizer
from tests.export.conftest import MODERN_SIZES

WIDTH = MODERN_SIZES["hidden_size"]
WORDS = ["query", ":", "a", "text", ".", "another", ",", "longer"]
TEXTS = ["A text.", "Another, longer text."]
PROMPTS = {"prompts": {"query": "query: ", "passage": ""}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Its positions are relative, so that padding on the left changes nothing."""
    folder = tmp_path_factory.mktemp("encoder")
    config = transformers.ModernBertConfig(**{**MODERN_SIZES, "max_position_embeddings": 41})
    randomise(transformers.ModernBertModel(config)).save_pretrained(folder)
    save_bert_tokenizer(folder, WORDS)
    return folder


def embedder(encoder, folder, *after, **settings):
    """A folder of an embedder with these modules after its encoder, which reads 31 tokens at most."""
    first = modules.Transformer(str(encoder), max_seq_length=31)
    SentenceTransformer(modules=[first, *after], device="cpu", **settings).save(str(folder))
    return folder


def expected(folder, texts=TEXTS):
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts)


@pytest.mark.parametrize("mode", modules.Pooling.POOLING_MODES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_vector_is_that_of_encode(mode, side, encoder, tmp_path):
    """With the default prompt, truncation, and padding on either side."""
    folder = embedder(encoder, tmp_path / "model", modules.Pooling(WIDTH, mode), modules.Normalize(), **PROMPTS)
    source = load(str(folder))
    assert source.limit == 31
    texts = [*TEXTS, "text " * 99]
    options = {"padding": True, "truncation": True, "padding_side": side, "return_tensors": "np"}
    inputs = source.tokenizer([source.prompt + text for text in texts], **options)
    np.testing.assert_allclose(source.run(inputs)[1], expected(folder, texts), atol=1e-6)


@pytest.mark.e2e
def test_a_file_of_every_module(encoder, tmp_path, capsys):
    """All ways of pooling side by side, and the first columns of what follows; as its card says."""
    pooling = modules.Pooling(WIDTH, modules.Pooling.POOLING_MODES)
    after = [pooling, modules.Dropout(0.5), modules.Dense(6 * WIDTH, 23), modules.LayerNorm(23), modules.Normalize()]
    folder, out = embedder(encoder, tmp_path / "model", *after, truncate_dim=19, **PROMPTS), tmp_path / "out"
    main(["export", str(folder), str(out)])
    results = json.loads((out / "export.json").read_text())
    assert results["outputs"] == ["last_hidden_state", "sentence_embedding"] and results["max_length"] == 31
    assert {path.name for path in out.iterdir()} >= {"modules.json", "1_Pooling", "config_sentence_transformers.json"}
    card = (out / "README.md").read_text()
    assert "An encoder with full attention for inputs of up to 31 tokens" in card and "linear" not in card
    code, found = card.split("```")[1].removeprefix("python").replace("FOLDER", str(out)), {}
    exec(code, found)
    assert capsys.readouterr().out.endswith("(2, 19)\n")
    np.testing.assert_allclose(found["embeddings"], expected(folder), atol=1e-6)


def test_weights_in_half_precision_are_exported_in_float32(encoder, tmp_path):
    pooling = modules.Pooling(WIDTH, "mean")
    folder = embedder(encoder, tmp_path / "model", pooling, modules.Dense(WIDTH, 23))
    SentenceTransformer(str(folder), device="cpu").half().save(str(folder))
    assert {parameter.dtype for parameter in load(str(folder)).parameters()} == {torch.float32}


REFUSED = {
    "LSTM": lambda: [modules.LSTM(WIDTH, 23), modules.Pooling(46)],
    "CNN": lambda: [modules.CNN(WIDTH, 23), modules.Pooling(69)],
    "WeightedLayerPooling": lambda: [modules.WeightedLayerPooling(WIDTH, 1, 0), modules.Pooling(WIDTH)],
}


@pytest.mark.parametrize("module", REFUSED)
def test_a_module_that_a_file_cannot_have_is_named(module, encoder, tmp_path, capsys):
    folder = embedder(encoder, tmp_path / "model", *REFUSED[module]())
    error = fail(capsys, "export", folder, tmp_path / "out")
    assert "model: expected Pooling or Normalize or Dense" in error and error.rstrip().endswith(f", got {module}")


def test_what_does_not_begin_with_an_encoder_is_named(encoder, tmp_path, capsys):
    parts = {name: [modules.Transformer(str(encoder)), modules.Pooling(WIDTH)] for name in ("query", "passage")}
    router = modules.Router.for_query_document(parts["query"], parts["passage"])
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "model"))
    error = fail(capsys, "export", tmp_path / "model", tmp_path / "out")
    assert "model: expected Transformer in modules.json of" in error and "got Router" in error


def test_a_prompt_that_is_not_pooled_is_rejected(encoder, tmp_path, capsys):
    pooling = modules.Pooling(WIDTH, "mean", include_prompt=False)
    folder = embedder(encoder, tmp_path / "model", pooling, **PROMPTS)
    error = fail(capsys, "export", folder, tmp_path / "out")
    assert "model: expected Pooling of all tokens, got include_prompt false, and prompts, in" in error
