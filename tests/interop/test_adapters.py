"""Adapters of PEFT on our models: effect, training, merging, saving and loading, as on encoders of transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

import linformer_kit as lk
from linformer_kit import InputError
from linformer_kit.models.encoder import runs_in_blocks
from tests.conftest import KINDS, fields, randomise, tokens, values_of

ATTENTION = ["q_proj", "k_proj", "v_proj"]
ADAPTERS = {
    "lora": LoraConfig(r=5, target_modules=ATTENTION),
    "dora": LoraConfig(r=5, target_modules=ATTENTION, use_dora=True),
    "ia3": IA3Config(target_modules=ATTENTION, feedforward_modules=[]),
}


def masked(batch: int, seq_len: int) -> Tensor:
    mask = torch.ones(batch, seq_len, dtype=torch.long)
    mask[0, :5] = 0
    mask[1, -3:] = 0
    return mask


def adapted(model: nn.Module, adapter: str) -> PeftModel:
    """The model with adapters that do something: LoRA's start at zero."""
    peft_model = get_peft_model(model, copy.deepcopy(ADAPTERS[adapter]))
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if parameter.requires_grad and "magnitude" not in name:
                parameter.normal_(std=0.3)
    return peft_model.double().eval()


@pytest.mark.parametrize(("kind", "adapter"), values_of(KINDS, ADAPTERS))
def test_adapters_act_learn_and_merge(config, small_blocks, tmp_path, kind, adapter):
    model = randomise(lk.LinformerForSequenceClassification(config(**fields(kind)))).double().eval()
    ids, mask = tokens(3, 31), masked(3, 31)
    plain = model(ids, mask).logits.detach()
    peft_model = adapted(copy.deepcopy(model), adapter)
    logits = peft_model(input_ids=ids, attention_mask=mask).logits
    assert not torch.allclose(logits, plain, rtol=1e-2)

    learns = {name: parameter for name, parameter in peft_model.named_parameters() if parameter.requires_grad}
    assert {wanted for wanted in ATTENTION if any(wanted in name for name in learns)} == set(ATTENTION)
    gradients = torch.autograd.grad(logits.square().sum(), list(learns.values()))
    for (name, parameter), gradient in zip(learns.items(), gradients, strict=True):
        assert gradient.shape == parameter.shape and gradient.abs().max() > 0, name

    with torch.no_grad():  # no blocks of tokens: an adapter may look at all of them
        layer = peft_model.get_base_model().linformer.encoder.layers[0]
        assert not runs_in_blocks(layer, torch.zeros(3, 31, 33).double(), 29)
        torch.testing.assert_close(peft_model(input_ids=ids, attention_mask=mask).logits, logits)
    peft_model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double().eval()
    torch.testing.assert_close(loaded(input_ids=ids, attention_mask=mask).logits, logits, rtol=1e-5, atol=1e-5)
    with peft_model.disable_adapter():
        torch.testing.assert_close(peft_model(input_ids=ids, attention_mask=mask).logits, plain)
    merged = peft_model.merge_and_unload()
    assert all(type(merged.get_submodule(name)) is nn.Linear for name, _ in merged.named_modules() if "_proj" in name)
    with torch.no_grad():  # in blocks again
        assert runs_in_blocks(merged.linformer.encoder.layers[0], torch.zeros(3, 31, 33).double(), 29)
        torch.testing.assert_close(merged(ids, mask).logits, logits)


def test_slots_can_be_fewer_where_adapters_keep_copies_of_modules(config):
    """PEFT's wrappers of whole modules and of parameters, and compiled layers."""
    ids = tokens(2, 31)
    for wanted in ({"modules_to_save": ["self_attn"]}, {"target_parameters": ["projection.key_projection"]}):
        model = randomise(lk.LinformerModel(config())).eval()
        expected = copy.deepcopy(model)
        expected.set_projected_dim(3)
        wrapped = get_peft_model(model, LoraConfig(r=5, **{"target_modules": ["fc1"], **wanted})).eval()
        wrapped.get_base_model().set_projected_dim(3)
        torch.testing.assert_close(wrapped(ids).last_hidden_state, expected(ids).last_hidden_state)
    for place, layer in enumerate(expected.encoder.layers):
        expected.encoder.layers[place] = torch.compile(layer, backend="eager")
    expected.set_projected_dim(5)
    assert {layer.self_attn.projected_dim for layer in expected.encoder.layers} == {5}


def test_adapters_of_positions_are_merged_before_the_table_changes(config):
    model = lk.LinformerModel(config())
    peft_model = get_peft_model(model, LoraConfig(r=5, target_modules=["position_embeddings"]))
    with pytest.raises(InputError, match=r"no plain table of positions \(merge adapters"):
        model.resize_sequence_length(41)
    assert model.config.max_position_embeddings == 37
    merged = peft_model.merge_and_unload()
    merged.resize_sequence_length(41)
    assert merged.embeddings.position_embeddings.num_embeddings == 41 + merged.embeddings.position_offset
