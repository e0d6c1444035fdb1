"""Files of OpenVINO: every kind of model at any batch, length and padding; longer inputs are rejected."""

from __future__ import annotations

import re

import pytest
import torch
import transformers

from linformer_cli.errors import InputError
from linformer_kit.export.exportable import Case, differences, example, load, random_inputs
from tests.export.conftest import BERT_SIZES, LENGTH, MODERN_SIZES, linear_bert, linformer, save

openvino_file = pytest.importorskip("linformer_kit.export.openvino_file")

SHAPES = [Case(2, LENGTH - 1, "left"), Case(3, 4, "right"), Case(1, 1), Case(2, 2, "left"), Case(1, LENGTH)]
ROUNDING = 2e-6
SMALL = {"num_hidden_layers": 1}

KINDS = {
    "linear in place": lambda folder: save(linear_bert(), folder),
    "masked": lambda folder: linformer("LinformerForMaskedLM", folder, sharing="layerwise", **SMALL),
    "answers": lambda folder: linformer("LinformerForQuestionAnswering", folder, projection="max_pool", **SMALL),
    "tokens": lambda folder: linformer("LinformerForTokenClassification", folder, projection="conv", **SMALL),
    "as many heads as texts": lambda folder: linformer(
        "LinformerModel", folder, projection="dynamic", sharing="none", num_attention_heads=2, hidden_size=32, **SMALL
    ),
    "windows": lambda folder: save(
        transformers.ModernBertModel(transformers.ModernBertConfig(**{**MODERN_SIZES, "num_hidden_layers": 2})), folder
    ),
}


@pytest.mark.slow  # one of them by command: test_command.py
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, tmp_path):
    source = load(str(KINDS[kind](tmp_path / "model")))
    openvino_file.write(source, tmp_path / "openvino_model.xml")
    run = openvino_file.runner(tmp_path / "openvino_model.xml")
    assert max(differences(source, run, SHAPES).values()) < ROUNDING
    with pytest.raises(Exception, match=re.escape(f"model input (shape=[?,1..{LENGTH}])")):
        run(random_inputs(source, Case(2, LENGTH + 1, "right")))


def test_full_layers_have_no_mask_over_pairs_of_tokens(tmp_path):
    """Neither a program that is exported, whose mask has a row for all queries, nor another answer."""
    config = transformers.BertConfig(**BERT_SIZES)
    source = load(str(save(transformers.BertModel(config), tmp_path / "model")))
    with torch.no_grad():
        program = torch.export.export(source, (), kwargs=example(source), strict=False)
    masks = [node.args[3].meta["val"].shape for node in program.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert masks == [(2, 1, 1, 7)]
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(tmp_path / "model")(**example(source)).last_hidden_state
        real = example(source)["attention_mask"] == 1
        torch.testing.assert_close(program.module()(**example(source))[0][real], expected[real])


def test_what_openvino_cannot_express_is_one_line(tmp_path, monkeypatch):
    source = load(str(linformer("LinformerModel", tmp_path / "model", **SMALL)))
    monkeypatch.setattr(source, "forward", lambda input_ids, attention_mask: (torch.geqrf(input_ids * 1.0)[0],))
    with pytest.raises(InputError, match=r"^model: expected one that OpenVINO can express, got LinformerModel: .+$"):
        openvino_file.write(source, tmp_path / "openvino_model.xml")
