"""RoBERTa and BERT: every weight kept, and with full attention the outputs of the source."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers
from torch import nn
from transformers import BertConfig

from linformer_kit import InputError, LinformerForMaskedLM
from linformer_kit import load_encoder_checkpoint as load
from tests.conftest import SHARINGS, randomise, values_of

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
}
HEADS = ["MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"]
CLASSES = [f"{family}For{head}" for family in ("Roberta", "Bert") for head in HEADS]
CLASSES += ["RobertaModel", "BertModel", "BertForPreTraining", "XLMRobertaForMaskedLM", "CamembertForMaskedLM"]


def source(class_name: str, folder, **fields: object):
    """A model of transformers with random weights, saved."""
    made = {**SIZES, "num_labels": 2 if "Question" in class_name else 3, "layer_norm_eps": 1e-7, **fields}
    model_class = getattr(transformers, class_name)
    if class_name.startswith("Bert"):
        config = BertConfig(max_position_embeddings=37, **{"hidden_act": "gelu_new", **made})
    else:
        config = model_class.config_class(max_position_embeddings=39, **{"type_vocab_size": 1, **made})
    model = randomise(model_class(config)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("class_name", "sharing"), values_of(CLASSES, SHARINGS))
def test_with_full_attention_it_is_the_source_and_only_e_and_f_are_new(class_name, sharing, tmp_path):
    theirs = source(class_name, tmp_path)
    full = load(tmp_path, attention="full")
    ids, mask = torch.randint(5, 101, (3, 37)), torch.ones(3, 37, dtype=torch.long)
    mask[0, 23:] = 0
    ids = ids.masked_fill(mask == 0, theirs.config.pad_token_id)
    arguments = {"input_ids": ids, "attention_mask": mask}
    if theirs.config.type_vocab_size > 1:
        arguments["token_type_ids"] = torch.randint(2, (3, 37))
    with torch.no_grad():
        expected, got = theirs(**arguments), full(**arguments)
    if class_name == "BertForPreTraining":
        pairs = [(got.logits, expected.prediction_logits)]
    else:
        pairs = list(zip(got.to_tuple(), expected.to_tuple(), strict=not class_name.endswith("Model")))  # no pooler
    for mine, other in pairs:
        if mine.shape[:2] == mask.shape:
            mine, other = mine[mask == 1], other[mask == 1]
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)

    ours, config = load(tmp_path, projected_dim=7, sharing=sharing), full.config
    kept = {name: tensor for name, tensor in ours.state_dict().items() if ".projection." not in name}
    assert kept.keys() == full.state_dict().keys()
    assert all(torch.equal(tensor, full.state_dict()[name]) for name, tensor in kept.items())
    # Of encoders and of pretraining the pooler is left out, and the two answers of the next sentence.
    left_out = 33 * 33 + 33 if class_name.endswith(("Model", "ForPreTraining")) else 0
    left_out += 2 * 33 + 2 if class_name == "BertForPreTraining" else 0
    assert full_size(theirs) - left_out == full_size(full)
    assert ours.projection_matrix_count() == {"none": 12, "headwise": 4, "key_value": 2, "layerwise": 1}[sharing]
    assert (config.max_position_embeddings, config.layer_norm_eps) == (37, 1e-7)
    assert config.hidden_act == theirs.config.hidden_act
    assert config.position_offset == (0 if class_name.startswith("Bert") else 2)
    assert config.id2label == theirs.config.id2label


def full_size(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_untied_embeddings_stay_untied(tmp_path):
    theirs = source("RobertaForMaskedLM", tmp_path, tie_word_embeddings=False)
    ours = load(tmp_path, projected_dim=7)
    assert isinstance(ours, LinformerForMaskedLM) and not ours.config.tie_word_embeddings
    assert torch.equal(ours.lm_head.decoder.weight, theirs.lm_head.decoder.weight)
    assert not torch.equal(ours.lm_head.decoder.weight, ours.linformer.embeddings.word_embeddings.weight)


@pytest.mark.parametrize(
    ("class_name", "fields", "message"),
    [
        ("BertModel", {"projected_dim": 38}, "projected_dim: expected 1 to 37 (max_position_embeddings), got 38"),
        (
            "BertModel",
            {"hidden_size": 11, "num_attention_heads": 1},
            "size mismatch for embeddings.word_embeddings.weight",
        ),
        ("RobertaForMaskedLM", {"attention": "full"}, "expected hidden_act gelu in a masked language model, got relu"),
        ("BertLMHeadModel", {}, "BertForQuestionAnswering, BertModel, got BertLMHeadModel"),
    ],
)
def test_rejected(class_name, fields, message, tmp_path):
    source(class_name, tmp_path, **({"hidden_act": "relu"} if "relu" in message else {}))
    with pytest.raises(InputError, match=re.escape(message)):
        load(tmp_path, **fields)


def test_other_models_rejected(tmp_path):
    with pytest.raises(InputError, match=r"expected config\.json in .*, got none"):
        load(tmp_path.parent)
    source("RobertaForMaskedLM", tmp_path)
    change_config(tmp_path, is_decoder=True)
    with pytest.raises(InputError, match="expected an encoder, got a decoder"):
        load(tmp_path)


def test_weights_that_are_missing_broken_or_not_finite_are_rejected(tmp_path):
    model = source("BertModel", tmp_path)
    state = {name: tensor for name, tensor in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(
        InputError, match=r"expected weights that fit its config.json in .*, got none for encoder\.layer\.1\.output"
    ):
        load(tmp_path)
    nn.init.constant_(model.encoder.layer[1].output.dense.bias, torch.nan)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"got NaN or infinite ones in encoder\.layer\.1\.output\.dense\.bias"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"model\.safetensors: expected whole safetensors, got"):
        load(tmp_path)


def change_config(folder, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_another_length_has_new_e_and_f_of_that_length(tmp_path):
    """The positions are the source's, repeated; E and F start as in any model of that length, with rows of norm 1."""
    theirs = source("RobertaForMaskedLM", tmp_path)
    ours = load(tmp_path, max_position_embeddings=111, projected_dim=53, sharing="layerwise")
    old, new = theirs.roberta.embeddings.position_embeddings.weight, ours.linformer.embeddings.position_embeddings
    assert torch.equal(new.weight, torch.cat([old[:2], old[2:], old[2:], old[2:]]))
    matrix = ours.linformer.encoder.projection.key_projection
    assert matrix.shape[-2:] == (53, 111)
    assert matrix.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.1)
    kept = {n: w for n, w in load(tmp_path, attention="full").state_dict().items() if "position" not in n}
    assert all(torch.equal(weight, ours.state_dict()[name]) for name, weight in kept.items())
    shorter = load(tmp_path, max_position_embeddings=23, resize_mode="interpolate")
    assert (shorter.config.max_position_embeddings, shorter.config.projected_dim) == (23, 23)
    assert load(tmp_path, max_position_embeddings=131).config.projected_dim == 128
    with pytest.raises(InputError, match="max_position_embeddings: expected at least 37 for mode extend, got 23"):
        load(tmp_path, max_position_embeddings=23)
    with pytest.raises(InputError, match="max_position_embeddings: expected greater than or equal to 1, got 0"):
        load(tmp_path, max_position_embeddings=0)


def test_positions_begin_after_the_padding_id(tmp_path):
    theirs = source("RobertaForMaskedLM", tmp_path, pad_token_id=4)
    ours = load(tmp_path, attention="full")
    assert (ours.config.position_offset, ours.config.max_position_embeddings, ours.config.pad_token_id) == (5, 34, 4)
    ids = torch.randint(5, 101, (3, 34))
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    change_config(tmp_path, pad_token_id=None)
    with pytest.raises(InputError, match=r"expected a pad_token_id \(positions begin after it\), got None"):
        load(tmp_path)
    source("BertModel", tmp_path)
    change_config(tmp_path, pad_token_id=None)
    assert load(tmp_path).config.pad_token_id is None


def test_special_tokens_and_the_problem_are_carried(tmp_path):
    """Ids outside the vocabulary, which nothing uses, become none."""
    source("BertForSequenceClassification", tmp_path, problem_type="regression")
    change_config(tmp_path, bos_token_id=100, eos_token_id=101)
    config = load(tmp_path, projected_dim=7).config
    assert (config.bos_token_id, config.eos_token_id, config.problem_type) == (100, None, "regression")
