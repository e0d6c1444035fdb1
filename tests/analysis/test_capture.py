"""The context mappings of any encoder equal those that the model returns."""

from __future__ import annotations

import weakref

import pytest
import torch
import transformers
from torch import nn

from linformer_kit import InputError, LinformerModel
from linformer_kit.analysis.capture import LayerAttention, visit_attention
from tests.conftest import KINDS, fields, randomise, tokens

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 41,
}
INTERFACE = ("bert", "roberta", "albert", "distilbert", "modernbert")


def encoder(kind: str) -> transformers.PreTrainedModel:
    changes: dict[str, object] = dict(SIZES)
    if kind == "distilbert":
        changes = {"vocab_size": 101, "dim": 33, "n_layers": 2, "n_heads": 3, "hidden_dim": 29}
    if kind == "modernbert":  # rotations need pairs of dimensions
        changes |= {"hidden_size": 36, "pad_token_id": 0}
        changes |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}
    config = transformers.AutoConfig.for_model(kind, **changes)
    return randomise(transformers.AutoModel.from_config(config)).eval()


def visited(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[LayerAttention]:
    found: list[LayerAttention] = []
    visit_attention(model, inputs, lambda layer, attention: found.insert(layer, attention))
    return found


def inputs_with_padding() -> dict[str, torch.Tensor]:
    mask = torch.ones(3, 23, dtype=torch.long)
    mask[1, 17:] = 0
    mask[2, :5] = 0
    return {"input_ids": tokens(3, 23), "attention_mask": mask}


@pytest.mark.parametrize("kind", INTERFACE)
def test_it_is_what_the_model_returns(kind):
    model, inputs = encoder(kind), inputs_with_padding()
    before = model.config._attn_implementation
    output = model(**inputs).last_hidden_state
    found = visited(model, inputs)
    assert model.config._attn_implementation == before and torch.equal(model(**inputs).last_hidden_state, output)
    model.set_attn_implementation("eager")
    expected = model(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    assert len(found) == len(expected) == 2
    for attention, weights in zip(found, expected, strict=True):
        assert torch.equal(attention.real, real)
        assert not attention.mapping[~real[:, None, :].expand(-1, 3, -1)].any()
        assert not attention.mapping.mT[~real[:, None, :].expand(-1, 3, -1)].any()
        torch.testing.assert_close(attention.mapping, weights * real[:, None, :, None], atol=1e-6, rtol=1e-4)
        if kind != "modernbert":  # of which the second layer sees a window only
            first = (attention.query[0] @ attention.key[0].mT).softmax(dim=-1)
            torch.testing.assert_close(first, attention.mapping[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_models(config, kind):
    model, inputs = randomise(LinformerModel(config(**fields(kind)))).eval(), inputs_with_padding()
    output = model(**inputs).last_hidden_state
    found = visited(model, inputs)
    assert torch.equal(model(**inputs).last_hidden_state, output)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    expected = model(**inputs, output_attentions=True).attentions
    for attention, weights in zip(found, expected, strict=True):
        for sample in range(3):
            real = inputs["attention_mask"][sample].bool()
            rows = attention.mapping[sample][:, attention.real[sample]]
            theirs = weights[sample][:, real]
            if model.config.attention == "full":  # the keys too may stand in another order, which changes nothing else
                rows, theirs = rows[..., attention.real[sample]], theirs[..., real]
                states = (attention.query[sample] @ attention.key[sample].mT)[:, attention.real[sample]]
                states = states[..., attention.real[sample]].softmax(dim=-1)
                torch.testing.assert_close(states, rows, atol=1e-6, rtol=1e-4)
            torch.testing.assert_close(rows, theirs, atol=1e-6, rtol=1e-4)
        padded = attention.mapping[~attention.real[:, None, :].expand(-1, 3, -1)]
        assert padded.numel() and not padded.any()


@pytest.mark.parametrize("ours", [True, False])
def test_one_layer_is_held_at_a_time(config, ours):
    model = LinformerModel(config(num_hidden_layers=4)).eval() if ours else encoder("bert")
    seen: list[weakref.ref] = []

    def visit(layer: int, attention: LayerAttention) -> None:
        assert layer == len(seen) and not any(reference() is not None for reference in seen)
        seen.append(weakref.ref(attention.mapping))

    visit_attention(model, {"input_ids": tokens(2, 23)}, visit)
    assert len(seen) == model.config.num_hidden_layers


def small(kind: str, **fields: object) -> transformers.PreTrainedModel:
    return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **fields)).eval()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: small("mpnet", **SIZES), "expected one that uses transformers' attention interface, got a mpnet"),
        (lambda: small("gpt2", vocab_size=101, n_embd=33, n_layer=2, n_head=3), "a model with causal attention \\(gpt2\\)"),
        (lambda: small("bart", vocab_size=101, d_model=33, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=29, decoder_ffn_dim=29), "an encoder-decoder \\(bart\\)"),
    ],
)  # fmt: skip
def test_what_has_no_such_weights_is_refused(model, message):
    with pytest.raises(InputError, match=message):
        visited(model(), {"input_ids": tokens(1, 23)})


def test_a_single_token_does_not_make_a_decoder():
    mask = torch.tensor([[1, 0, 0]])
    found = visited(encoder("bert"), {"input_ids": tokens(1, 3), "attention_mask": mask})
    assert found[0].mapping[0, 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_model_in_training_is_refused():
    with pytest.raises(InputError, match="expected one in evaluation mode"):
        visited(encoder("bert").train(), {"input_ids": tokens(1, 5)})
