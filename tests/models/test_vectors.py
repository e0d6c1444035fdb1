"""`LinformerEncoder`: the layers for inputs that are vectors, and word embeddings given as vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from linformer_kit import (
    InputError,
    LinformerEncoder,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from linformer_kit.interop.loading import load_model
from tests.conftest import doubled, pairs_of, randomise, replica_of, tokens

ENCODERS = [{}, {"sharing": "none"}, {"projection": "mean_pool", "sliding_window": 3}, {"norm_first": True}]
ENCODERS += [{"norm_first": True, "final_norm": False}, {"attention": "full"}]


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_encoder_is_the_model_without_embeddings(config, kind):
    """Its outputs are those of the model's layers, which take what the embeddings make."""
    model = randomise(LinformerModel(config(**kind))).double().eval()
    encoder = LinformerEncoder(model.config).double().eval()
    state = model.state_dict()
    encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
    assert len(encoder.state_dict()) == sum(name.startswith("encoder.") for name in state)
    ids, mask = tokens(2, 31), torch.ones(2, 31).long()
    mask[0, 19:] = mask[1, :5] = 0
    model.embeddings.register_forward_hook(lambda _, inputs, output: states.append((inputs[0], output)))
    states: list = []
    expected = model(ids, mask, output_hidden_states=True, output_attentions=True)
    got = encoder(expected.hidden_states[0].detach(), mask, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)
    for mine, other in zip(got.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
    assert type(encoder(expected.hidden_states[0], return_dict=False)) is tuple


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_encoder_takes_padding_anywhere(config, kind):
    encoder, inputs = randomise(LinformerEncoder(config(**kind))).double().eval(), torch.randn(2, 31, 33).double()
    for real in (torch.arange(31) < 19, torch.arange(31) >= 11, torch.arange(31) % 3 != 0):
        garbled = inputs.masked_fill(~real[:, None], torch.nan)
        out = encoder(garbled, real.expand(2, -1).long())[0][:, real]
        torch.testing.assert_close(out, encoder(inputs[:, real])[0], rtol=0, atol=1e-10)
        out.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters() if parameter.requires_grad)
    assert garbled.isnan().any()  # the caller's inputs are unchanged


def test_the_encoder_is_saved_and_grows(config, tmp_path):
    encoder, inputs = randomise(LinformerEncoder(config())).eval(), torch.randn(2, 37, 33)
    expected = encoder(inputs)[0]
    encoder.save_pretrained(tmp_path)
    assert torch.equal(LinformerEncoder.from_pretrained(tmp_path)(inputs)[0], expected)
    assert "LinformerEncoder.from_pretrained" in (tmp_path / "README.md").read_text()
    encoder.resize_sequence_length(83)
    torch.testing.assert_close(encoder(inputs)[0], expected)
    encoder.set_projected_dim(3)
    assert encoder(torch.randn(1, 83, 33), output_attentions=True).attentions[0].shape == (1, 3, 83, 3)


HEADS = (LinformerModel, LinformerForMaskedLM, LinformerForSequenceClassification)


@pytest.mark.parametrize("loader", [*HEADS, AutoModel, AutoModelForMaskedLM])
def test_a_saved_encoder_is_not_loaded_with_random_embeddings(config, tmp_path, loader):
    LinformerEncoder(config()).save_pretrained(tmp_path)
    message = f"^{tmp_path}: expected embeddings of words, got none; lk.LinformerEncoder loads it$"
    with pytest.raises(InputError, match=message):
        loader.from_pretrained(tmp_path)


def test_a_damaged_model_is_not_taken_for_an_encoder(config, tmp_path):
    """What is missing is reported, as in transformers."""
    model = LinformerModel(config())
    weights = {name: tensor for name, tensor in model.state_dict().items() if "word_embeddings" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    _, loading = LinformerModel.from_pretrained(tmp_path, output_loading_info=True)
    assert loading["missing_keys"] == {"embeddings.word_embeddings.weight"}
    with pytest.raises(InputError, match=r"got none for embeddings\.word_embeddings\.weight"):
        load_model(str(tmp_path), AutoModel, "an encoder", to_run=False)


@pytest.mark.parametrize("model_class", HEADS)
def test_an_encoder_takes_the_layers_of_a_saved_model(config, tmp_path, model_class):
    model = randomise(model_class(config(norm_first=True, sharing="layerwise"))).eval()
    model.save_pretrained(tmp_path)
    encoder, loading = LinformerEncoder.from_pretrained(tmp_path, output_loading_info=True)
    expected = model.base_model(tokens(2, 31), output_hidden_states=True)
    assert torch.equal(encoder(expected.hidden_states[0])[0], expected[0])
    assert not loading["missing_keys"] and not any(".layers." in key for key in loading["unexpected_keys"])


def test_the_encoder_computes_large_inputs_in_blocks(config, small_blocks):
    encoder, inputs = randomise(LinformerEncoder(config())).eval(), torch.randn(5, 37, 33)
    mask = (torch.arange(37) < 29).expand(5, -1)
    expected, before = encoder(inputs, mask)[0].detach(), inputs.clone()
    with torch.no_grad():
        torch.testing.assert_close(encoder(inputs, mask)[0][mask], expected[mask])
    assert torch.equal(inputs, before)


@pytest.mark.unchecked
@pytest.mark.parametrize("model_class", [LinformerEncoder, LinformerModel])
def test_vectors_rejected(config, model_class):
    wrong = "inputs_embeds: expected "
    given = {torch.zeros(2, 31): wrong, torch.zeros(2, 31, 35): wrong, torch.zeros(2, 31, 33).long(): wrong}
    for inputs, message in (given | {torch.zeros(2, 41, 33): "sequence length: expected at most"}).items():
        with pytest.raises(InputError, match=message):
            model_class(config())(inputs_embeds=inputs)
    for inputs in (None, np.zeros((2, 31, 33))):
        with pytest.raises(InputError, match=r"^inputs_embeds: expected floating point \[batch, sequence, 33\], got "):
            LinformerEncoder(config())(inputs)


@pytest.mark.parametrize("weights", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("model_class", [LinformerEncoder, LinformerModel])
def test_vectors_of_another_dtype(config, model_class, given, weights):
    """They are rejected, unless mixed precision or the sum with the positions converts them."""
    model, vectors = model_class(config()).to(weights).eval(), torch.randn(2, 31, 33).to(given)
    narrower = torch.promote_types(given, weights) == weights
    if narrower and weights == torch.float32:
        with torch.autocast("cpu", torch.bfloat16):
            assert model(inputs_embeds=vectors).last_hidden_state.isfinite().all()
    if given == weights or (narrower and model_class is LinformerModel):
        assert model(inputs_embeds=vectors).last_hidden_state.isfinite().all()
    else:
        with pytest.raises(InputError, match=f"^inputs_embeds: expected {weights}, as the weights are, got {given}$"):
            model(inputs_embeds=vectors)


PARTS = [{}, {"projection": "conv"}, {"sliding_window": 3}, {"global_tokens": 2}]


@pytest.mark.parametrize(
    ("fields", "sharing", "kind"), pairs_of(PARTS, ["headwise", "layerwise"], [LinformerEncoder, *HEADS[:2]])
)
def test_replicas_of_data_parallel_have_weights_of_their_own(config, kind, sharing, fields):
    """Also where E and F belong to the encoder; its own are as before."""
    model, vectors = randomise(kind(config(sharing=sharing, **fields))).eval(), torch.randn(2, 9, 33)
    before = model(inputs_embeds=vectors)[0]
    replica = replica_of(model)
    torch.testing.assert_close(replica(inputs_embeds=vectors)[0], doubled(model)(inputs_embeds=vectors)[0])
    assert torch.equal(model(inputs_embeds=vectors)[0], before)
