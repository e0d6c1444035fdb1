"""With full attention the models are those of transformers, and E and F can be added to their weights."""

from __future__ import annotations

import pytest
import torch
import transformers

from linformer_kit import LinformerConfig, LinformerForMaskedLM, LinformerModel
from linformer_kit.interop.loading import renamed_weights
from tests.conftest import randomise

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
    "layer_norm_eps": 1e-7,
}
NAMES = (
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("encoder.layer.", "encoder.layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "self_attn_layer_norm"),
    ("intermediate.dense", "fc1"),
    ("output.dense", "fc2"),
    ("output.LayerNorm", "final_layer_norm"),
    ("roberta.", "linformer."),
    ("lm_head.bias", "lm_head.decoder.bias"),
)


# LayerNorm before each part: names of theirs, first the last one.
PRE_NORM = (("attention.LayerNorm", "self_attn_layer_norm"), ("intermediate.LayerNorm", "final_layer_norm"))


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "RobertaForMaskedLM", "RobertaPreLayerNormModel"])
def test_it_is_the_model_of_transformers(name):
    kind, offset = getattr(transformers, name), 2 * name.startswith("Roberta")
    positions = {"max_position_embeddings": 37 + offset, "type_vocab_size": 2 - offset // 2}
    options = {} if "For" in name else {"add_pooling_layer": False}
    theirs = randomise(kind(kind.config_class(**SIZES, **positions), **options)).eval()
    fields = {"max_position_embeddings": 37, "type_vocab_size": 2 - offset // 2, "position_offset": offset}
    pad = theirs.config.pad_token_id
    pre_norm = "PreLayerNorm" in name
    config = LinformerConfig(**SIZES, **fields, attention="full", pad_token_id=pad, norm_first=pre_norm)
    ours = (LinformerForMaskedLM if "For" in name else LinformerModel)(config).eval()
    names = PRE_NORM + NAMES if pre_norm else NAMES
    weights = renamed_weights(theirs.state_dict(), names)
    ours.load_state_dict({name.replace("LayerNorm.", "encoder.layer_norm."): each for name, each in weights.items()})
    ids, mask = torch.randint(5, 101, (3, 37)), torch.ones(3, 37, dtype=torch.long)
    mask[0, 23:] = 0
    arguments = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}
    expected, got = (model(**arguments)[0][mask == 1] for model in (theirs, ours))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_made_a_linformer_every_weight_is_kept_and_e_and_f_are_those_of_a_new_model(tmp_path):
    sizes = SIZES | {"max_position_embeddings": 31, "norm_first": True, "local_convolution": 3}
    full = randomise(LinformerForMaskedLM(LinformerConfig(**sizes, attention="full")))
    full.save_pretrained(tmp_path)
    fields = {"attention": "linformer", "projected_dim": 7, "sharing": "none"}
    ours = LinformerForMaskedLM.from_pretrained(tmp_path, **fields).state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in full.state_dict().items())
    new = LinformerForMaskedLM(LinformerConfig(**sizes, **fields)).state_dict()
    added = ours.keys() - full.state_dict().keys()
    assert added and all(".projection." in name and torch.equal(ours[name], new[name]) for name in added)
