"""The configuration: rejected values, saving and loading."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch
from transformers import AutoConfig

from linformer_cli.settings import ModelSettings
from linformer_kit import InputError, LinformerConfig, LinformerModel
from linformer_kit.models.configuration import warn_of_unknown

CAUSAL = {"causal": True, "projection": "mean_pool", "sliding_window": 4}  # 512 tokens in 128 windows


def test_fields_and_defaults_are_those_of_the_settings():
    config = LinformerConfig()
    for field in dataclasses.fields(ModelSettings):
        assert getattr(config, field.name) == field.default


def test_saving_and_loading_keep_every_field(config, tmp_path):
    saved = config(sharing="layerwise", bias_order="after_projection", position_offset=2, num_labels=5)
    saved.save_pretrained(tmp_path)
    loaded = LinformerConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == saved.to_dict()
    assert loaded.num_labels == 5


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("attention", ("linformer", "full"), ["linformer", "full"]),
        ("projected_dim", (5, 7), [5, 7]),
        ("projected_dim", ((5, 5, 3), (7, 7, 2)), [[5, 5, 3], [7, 7, 2]]),
        ("projected_dim", [(5, 5, 3), (7, 7, 2)], [[5, 5, 3], [7, 7, 2]]),
    ],
)
def test_tuples_are_lists(config, tmp_path, name, given, kept):
    made = config(**{name: given})
    changed = LinformerConfig.from_dict(config().to_dict(), **{name: given})
    made.save_pretrained(tmp_path)
    for each in (made, changed, LinformerConfig.from_pretrained(tmp_path)):
        assert getattr(each, name) == kept
    LinformerModel(made)(torch.ones(1, 23).long())


def test_tuples_of_slots_are_by_layer_as_lists_are(config):
    """Also with as many layers as heads, where one k per layer could be taken for one per head."""
    models = [LinformerModel(config(num_hidden_layers=3)).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ids = torch.arange(31)[None]
    for dims in ((2, 3, 5), ((2, 3, 5), (3, 5, 7), (2, 2, 2))):
        models[0].set_projected_dim(dims)
        models[1].set_projected_dim([list(each) if isinstance(each, tuple) else each for each in dims])
        first, second = (model(ids, output_attentions=True) for model in models)
        assert torch.equal(first[0], second[0])
        assert [each.shape for each in first.attentions] == [each.shape for each in second.attentions]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": ["full"] * 5}, "attention: expected one for each of 12 layers, got ['full', 'full',"),
        ({"attention": ("full", "fill")}, "attention: expected 'linformer' or 'full'"),
        ({"attention": [*["full"] * 11, "linformer"], "projected_dim": 600}, "projected_dim: expected 1 to 512"),
        ({"projected_dim": ("8", 8)}, "projected_dim: expected a valid integer or a valid list, got "),
        ({"hidden_size": 0}, "hidden_size: expected greater than or equal to 1, got 0"),
        ({"hidden_size": True}, "hidden_size: expected a number, got True"),
        ({"id2label": "x"}, "id2label: expected a name for each class id, got 'x'"),
        ({"num_attention_heads": 5}, "num_attention_heads: expected a divisor of hidden_size 768, got 5"),
        ({"final_norm": False}, "final_norm: expected True without norm_first, got False"),
        ({"bias_order": "after_projection", "sharing": "none"}, "bias_order: expected before_projection, unless E and"),
        ({"causal": True}, "projection: expected one with windows (such as mean_pool), or full attention, with causal"),
        ({**CAUSAL, "shorter_input": "stretch"}, "shorter_input: expected prefix with causal, got 'stretch'"),
        ({**CAUSAL, "projected_dim": [*[128] * 11, 64]}, "sliding_window: expected at least 8 with caus"),
        ({"sharing": "all"}, "sharing: expected 'none', 'headwise', 'key_value' or 'layerwise', got all"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings: expected less than or equal to 16777216, got"),
        ({"hidden_act": "gleu"}, "hidden_act: expected an activation that transformers knows, got 'gleu'"),
        (
            {"projected_dims": 64},
            "projected_dims: expected a field of LinformerConfig, got an unknown one (did you mean",
        ),
    ],
)
def test_rejections(fields, message):
    with pytest.raises(InputError, match=re.escape(message)):
        LinformerConfig(**fields)


def test_k_of_a_layer_with_full_attention_limits_no_window():
    kinds, dims = ["full", *["linformer"] * 11], [1, *[128] * 11]
    assert LinformerConfig(**CAUSAL, attention=kinds, projected_dim=dims).projected_dim == dims


@pytest.fixture
def noted(config, tmp_path):
    """A folder whose configuration has fields that this version does not know."""
    saved = config()
    saved.my_note = {"by": "a user"}
    saved.projected_dims = 3
    saved.save_pretrained(tmp_path)
    warn_of_unknown.cache_clear()
    return tmp_path


def test_a_file_may_have_fields_of_others(noted, tmp_path, caplog):
    """They are kept, saved again, and said once; what they mean cannot be known here."""
    loaded = AutoConfig.from_pretrained(noted)
    assert (loaded.my_note, loaded.projected_dims) == ({"by": "a user"}, 3)
    loaded.save_pretrained(tmp_path / "again")
    again = AutoConfig.from_pretrained(tmp_path / "again")
    assert {**again.to_dict(), "_name_or_path": loaded._name_or_path} == loaded.to_dict()
    assert [record.message for record in caplog.records if record.name == "linformer_kit.models.configuration"] == [
        "config.json: kept fields that this version does not know and does not use: my_note, "
        "projected_dims (did you mean projected_dim?)"
    ]


def test_a_file_replaces_no_method(config):
    name = "projected_dim_of"
    loaded = LinformerConfig.from_dict({**config().to_dict(), name: 3})
    assert callable(getattr(loaded, name)) and loaded.projected_dim_of(0) == 7


@pytest.mark.parametrize("load", [AutoConfig.from_pretrained, LinformerModel.from_pretrained])
@pytest.mark.parametrize("projection", ["linear", "random", "dynamic"])
def test_a_folder_that_stretches_matrices_is_rejected(load, projection, config, tmp_path):
    """Such as an old one: with `prefix` its outputs would be other ones."""
    config(projection=projection).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "shorter_input": "stretch"}))
    with pytest.raises(InputError, match=r"^shorter_input: expected prefix, or a projection with windows .*, got '"):
        load(tmp_path)


@pytest.mark.parametrize("load", [AutoConfig.from_pretrained, LinformerModel.from_pretrained])
def test_keywords_beside_a_file_are_checked(load, config, tmp_path):
    LinformerModel(config()).save_pretrained(tmp_path)
    message = re.escape("projected_dimm: expected a field of LinformerConfig, got an unknown one (did you mean")
    with pytest.raises(InputError, match=message):
        load(tmp_path, projected_dimm=3)
    with pytest.raises(InputError, match=r"projected_dim: expected 1 to .*, got 0"):
        load(tmp_path, projected_dim=0)
    loaded = load(tmp_path, hidden_dropout_prob=0.25)
    assert getattr(loaded, "config", loaded).hidden_dropout_prob == 0.25
