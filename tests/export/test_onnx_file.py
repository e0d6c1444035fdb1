"""ONNX files of every head in ONNX Runtime: any batch, length and padding; longer inputs are rejected."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch
import transformers

import linformer_kit as lk
from linformer_cli.errors import InputError
from linformer_kit.export import command, onnx_file
from linformer_kit.export.exportable import check_agreement, load
from tests.conftest import ENCODERS, fields
from tests.export.conftest import BERT_SIZES, LENGTH, MODERN_SIZES, check_limit, linformer, save

HEADS = {
    "LinformerForMaskedLM": {"sharing": "layerwise"},
    "LinformerForSequenceClassification": {"sharing": "none", "num_hidden_layers": 1},
    "LinformerForTokenClassification": {"projection": "conv", "sharing": "key_value", "num_hidden_layers": 1},
    "LinformerForQuestionAnswering": {"projection": "max_pool", "num_hidden_layers": 1},
    "LinformerModel": {
        "projection": "mean_pool",
        "shorter_input": "stretch",
        "type_vocab_size": 3,
        "num_hidden_layers": 1,
    },
}
STOCK = {"AlbertForQuestionAnswering": {**BERT_SIZES, "embedding_size": 13}, "ModernBertModel": MODERN_SIZES}


def written(folder, tmp_path):
    """Write and check the ONNX file of a model; return a function that runs it."""
    source, path = load(str(folder)), tmp_path / "model.onnx"
    onnx_file.write(source, path)
    run = onnx_file.runner(path)
    check_agreement(source, run)
    check_limit(source, run)
    return source, run


def test_the_configuration_of_a_linear_model_is_the_stock_one(tmp_path):
    model = lk.linearize(transformers.BertForMaskedLM(transformers.BertConfig(**BERT_SIZES)), 7)
    command.write_configuration(model, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(config) is transformers.BertConfig and config.architectures == ["BertForMaskedLM"]
    assert not hasattr(config, "linformer")


@pytest.mark.slow
@pytest.mark.parametrize("class_name", HEADS)
def test_every_head(class_name, tmp_path):
    source, _ = written(linformer(class_name, tmp_path / "model", **HEADS[class_name]), tmp_path)
    assert source.limit == LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("class_name", STOCK)
def test_encoders_of_transformers(class_name, tmp_path):
    kind = getattr(transformers, class_name)
    source, _ = written(save(kind(kind.config_class(**STOCK[class_name])), tmp_path / "model"), tmp_path)
    assert source.limit == LENGTH
    assert (
        source.input_names == ("input_ids", "attention_mask", "token_type_ids")[: 2 + class_name.startswith("Albert")]
    )


@pytest.mark.slow
def test_an_encoder_linearised_with_learned_matrices(tmp_path):
    """One with windows is exported by command: test_command.py."""
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT_SIZES))
    options = {"projection": "linear", "sharing": "layerwise", "sliding_window": 0}
    written(save(lk.linearize(model, 7, **options), tmp_path / "model"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ENCODERS, "unequal"])
def test_every_sharing_and_projection(kind, tmp_path):
    more = {"projected_dim": [[7, 5, 3], [2, 2, 2]], "sharing": "none"} if kind == "unequal" else fields(kind)
    written(linformer("LinformerModel", tmp_path / "model", **more), tmp_path)


@pytest.mark.e2e
def test_one_file_that_says_its_longest_input_and_nothing_of_this_machine(exported):
    path = exported[2]
    assert sorted(each.name for each in path.parent.iterdir()) == ["model", "model.onnx"]
    check_agreement(*exported[:2])
    check_limit(*exported[:2])
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"max_length": str(LENGTH)}
    assert b".py" not in path.read_bytes()
    session = onnxruntime.InferenceSession(path)
    assert [value.shape for value in session.get_inputs()] == [["batch", "sequence"]] * 2
    outputs = [(value.name, value.shape) for value in session.get_outputs()]
    assert outputs == [("last_hidden_state", ["batch", "sequence", 129])]


@pytest.mark.e2e
def test_what_onnx_cannot_express_is_one_line(tmp_path, monkeypatch):
    source = load(str(linformer("LinformerModel", tmp_path / "model", num_hidden_layers=1)))
    monkeypatch.setattr(source, "forward", lambda input_ids, attention_mask: (torch.geqrf(input_ids * 1.0)[0],))
    with pytest.raises(InputError, match=r"^model: expected one that ONNX can express, got LinformerModel: .+$"):
        onnx_file.write(source, tmp_path / "model.onnx")
