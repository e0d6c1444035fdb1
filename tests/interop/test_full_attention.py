"""A Transformer of this package made a Linformer: every weight kept, and E and F as in a new model."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import InputError, LinformerConfig, LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_kit import load_encoder_checkpoint as load
from tests.conftest import randomise

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


def test_every_weight_is_kept_and_only_e_and_f_are_new(tmp_path):
    theirs = transformer(tmp_path).state_dict()
    model = load(tmp_path, projected_dim=7, sharing="none")
    assert (model.config.attention, model.config.projected_dim, model.config.sharing) == ("linformer", 7, "none")
    assert model.config.norm_first and not model.training
    ours = model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    new = LinformerForMaskedLM(LinformerConfig(**SIZES, projected_dim=7, sharing="none")).state_dict()
    added = ours.keys() - theirs.keys()
    assert added and all(".projection." in name and torch.equal(ours[name], new[name]) for name in added)


def test_from_python_by_the_configuration(tmp_path):
    """The same model as by conversion."""
    transformer(tmp_path)
    fields = {"projected_dim": 7, "sharing": "none", "projection_initializer": "shifted_pooling"}
    converted = load(tmp_path, **fields).state_dict()
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path, attention="linformer", **fields).state_dict()
    assert loaded.keys() == converted.keys() and all(torch.equal(loaded[name], converted[name]) for name in loaded)


def test_a_classifier_keeps_its_head(tmp_path):
    names = {0: "no", 1: "yes", 2: "perhaps"}
    theirs = transformer(tmp_path, LinformerForSequenceClassification, num_labels=3, id2label=names)
    model = load(tmp_path)
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
    config, new = load(tmp_path).config, LinformerConfig(**SIZES, projected_dim=31)
    assert all(getattr(config, name) == getattr(new, name) for name in values)


@pytest.mark.parametrize(
    ("attention", "fields", "message"),
    [
        ("linformer", {}, "source: expected a model with full attention, got a Linformer in"),
        ("full", {"projected_dim": 32}, "projected_dim: expected 1 to 31"),
        ("full", {"hidden_size": 66}, "size mismatch for linformer.embeddings"),
    ],
)
def test_rejected(attention, fields, message, tmp_path):
    transformer(tmp_path, attention=attention, projected_dim=7)
    with pytest.raises(InputError, match=message):
        load(tmp_path, **fields)
