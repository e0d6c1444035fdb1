"""A Transformer of this package made a Linformer: every weight kept, and E and F as in a new model."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import (
    InputError,
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from linformer_kit.interop.convert import convert_full_attention
from tests.conftest import SHARINGS, randomise

SIZES = {
    "vocab_size": 101,
    "max_position_embeddings": 31,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
    "norm_first": True,
    "local_convolution": 3,
}


def transformer(folder, model_class=LinformerForMaskedLM, **fields):
    model = randomise(model_class(LinformerConfig(**{**SIZES, "attention": "full", **fields}))).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_weight_is_kept_and_only_e_and_f_are_new(sharing, tmp_path):
    theirs = transformer(tmp_path).state_dict()
    model = convert_full_attention(str(tmp_path), {"projected_dim": 7, "sharing": sharing}, "extend").model
    assert (model.config.attention, model.config.projected_dim, model.config.sharing) == ("linformer", 7, sharing)
    assert model.config.norm_first and not model.training
    ours = model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    new = LinformerForMaskedLM(LinformerConfig(**SIZES, projected_dim=7, sharing=sharing)).state_dict()
    added = ours.keys() - theirs.keys()
    assert added and all(".projection." in name and torch.equal(ours[name], new[name]) for name in added)


def test_from_python_by_the_configuration(tmp_path):
    """The same model as by conversion."""
    transformer(tmp_path)
    fields = {"projected_dim": 7, "sharing": "none", "projection_initializer": "shifted_pooling"}
    converted = convert_full_attention(str(tmp_path), fields, "extend").model.state_dict()
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path, attention="linformer", **fields).state_dict()
    assert loaded.keys() == converted.keys() and all(torch.equal(loaded[name], converted[name]) for name in loaded)


def test_another_length(tmp_path):
    theirs = transformer(tmp_path)
    fields = {"max_position_embeddings": 62, "projected_dim": 11}
    model = convert_full_attention(str(tmp_path), fields, "interpolate").model
    theirs.resize_sequence_length(62, mode="interpolate")
    of_positions = "linformer.embeddings.position_embeddings.weight"
    assert torch.equal(model.state_dict()[of_positions], theirs.state_dict()[of_positions])
    new = LinformerForMaskedLM(LinformerConfig(**{**SIZES, **fields})).state_dict()
    for name in (name for name in new if ".projection." in name):
        assert torch.equal(model.state_dict()[name], new[name])
    assert model(torch.full((1, 62), 5)).logits.isfinite().all()


def test_a_classifier_keeps_its_head(tmp_path):
    names = {0: "no", 1: "yes", 2: "perhaps"}
    theirs = transformer(tmp_path, LinformerForSequenceClassification, num_labels=3, id2label=names)
    model = convert_full_attention(str(tmp_path), {}, "extend").model
    assert isinstance(model, LinformerForSequenceClassification) and model.config.id2label == names
    assert torch.equal(model.classifier.out_proj.weight, theirs.classifier.out_proj.weight)
    assert model.config.projected_dim == 31  # the default, at most n


def test_the_source_s_values_for_slots_do_not_count(tmp_path):
    values = {
        "projected_dim": 3,
        "sharing": "layerwise",
        "projection": "mean_pool",
        "shorter_input": "stretch",
        "bias_order": "after_projection",
        "sliding_window": 8,
        "global_tokens": 2,
    }
    transformer(tmp_path, **values)
    config, new = (
        convert_full_attention(str(tmp_path), {}, "extend").model.config,
        LinformerConfig(**SIZES, projected_dim=31),
    )
    assert all(getattr(config, name) == getattr(new, name) for name in values)


def test_an_encoder_without_its_pooler(tmp_path):
    transformer(tmp_path, LinformerModel, pooler=True)
    converted = convert_full_attention(str(tmp_path), {"projected_dim": 7}, "extend")
    assert converted.model(torch.full((1, 31), 5))[0].isfinite().all() and not converted.model.config.pooler
    assert converted.left_out == ["pooler.weight", "pooler.bias"]


@pytest.mark.parametrize(
    ("attention", "fields", "message"),
    [
        ("linformer", {}, "source: expected a model with full attention, got a Linformer in"),
        ("full", {"projected_dim": 32}, "projected_dim: expected 1 to 31"),
        ("full", {"hidden_size": 66}, r"expected linformer\..* of \[.*66.*\], got \[.*33.*\]"),
    ],
)
def test_refused(attention, fields, message, tmp_path):
    transformer(tmp_path, attention=attention, projected_dim=7)
    with pytest.raises(InputError, match=message):
        convert_full_attention(str(tmp_path), fields, "extend")
