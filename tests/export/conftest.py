"""Tiny models with every head, saved with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxscript")

import transformers
from transformers import AutoTokenizer, PreTrainedModel

import linformer_kit as lk
from linformer_kit.export import onnx_file
from linformer_kit.export.exportable import Case, Exportable, Run, load, random_inputs
from tests.conftest import SIZES, randomise, save_tokenizer

LENGTH = SIZES["max_position_embeddings"]
SMALL = {name: size for name, size in SIZES.items() if name != "projected_dim"}
BERT_SIZES = {**SMALL, "vocab_size": 53, "num_hidden_layers": 1}
MODERN_SIZES = {**BERT_SIZES, "hidden_size": 36, "local_attention": 7, "pad_token_id": 1}
MODERN_SIZES |= {"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
TEXTS = ["w7 w9 w11 w13 w17", "w19 w23", "w29"]


def save(model: PreTrainedModel, folder: Path) -> Path:
    """A model with random weights everywhere, and a tokenizer of 53 words."""
    randomise(model).save_pretrained(folder)
    save_tokenizer(folder)
    if getattr(model.config, "type_vocab_size", 0) > 1:
        names = ["input_ids", "token_type_ids", "attention_mask"]
        AutoTokenizer.from_pretrained(folder, model_input_names=names).save_pretrained(folder)
    return folder


def linformer(class_name: str, folder: Path, **fields: object) -> Path:
    config = lk.LinformerConfig(**{**SIZES, "vocab_size": 53, "num_labels": 3, **fields})
    return save(getattr(lk, class_name)(config), folder)


def linear_bert(**fields: object) -> Any:
    """A BERT of transformers, linearised; its longest text has several blocks of queries."""
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**{**BERT_SIZES, **fields}))
    return lk.linearize(model, 7, sliding_window=8, global_tokens=3)


def check_limit(source: Exportable, run: Run) -> None:
    """A file rejects one token more than its limit, even of padding, and the error names the limit."""
    with pytest.raises(Exception, match=f"input longer than {source.limit} tokens"):
        run(random_inputs(source, Case(2, source.limit + 1, "right")))


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A model, a function that runs its ONNX file, and the file; nothing but positions limits its length."""
    folder = tmp_path_factory.mktemp("exported")
    sizes = {"attention": "full", "num_hidden_layers": 1, "hidden_size": 129, "intermediate_size": 257}
    source = load(str(linformer("LinformerModel", folder / "model", **sizes)))
    onnx_file.write(source, folder / "model.onnx")
    return source, onnx_file.runner(folder / "model.onnx"), folder / "model.onnx"
