"""Singular values against numpy's; the spectrum of a model: means and spread over samples, padding; k by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import linformer_kit as lk
from linformer_kit import InputError, LinformerModel, Spectrum, attention_spectrum, choose_projected_dims
from linformer_kit.analysis import singular_values as sv
from linformer_kit.operator.padding import take_positions, zero_padding
from linformer_kit.operator.slots import merge_heads, split_heads
from tests.conftest import randomise, tokens

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 41,
}


def encoder(kind: str = "bert", **changes: object) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(kind, **SIZES | changes)
    return randomise(transformers.AutoModel.from_config(config)).eval()


def curves(model, ids: torch.Tensor) -> np.ndarray:
    """By numpy, of each sequence: `[sequences, layers, heads, rank]`."""
    if model.config.model_type == "bert":
        model.set_attn_implementation("eager")
    weights = [each.detach().double().numpy() for each in model(ids, output_attentions=True).attentions]
    sums = [np.linalg.svd(each, compute_uv=False).cumsum(-1) for each in weights]
    rank = max(each.shape[-1] for each in sums)  # a layer of smaller rank has all of the sum beyond its own
    filled = [np.pad(each, [(0, 0)] * 2 + [(0, rank - each.shape[-1])], mode="edge") for each in sums]
    return np.stack([each / each[..., -1:] for each in filled], axis=1)


@pytest.mark.parametrize("kind", ["bert", "linearised", "one layer", "ours", "full", "mixed"])
def test_means_and_spread_are_those_of_numpy(config, kind):
    if kind in ("bert", "linearised", "one layer"):
        options = {"sliding_window": 0, "global_tokens": 0, "layers": [1] if kind == "one layer" else None}
        model = encoder() if kind == "bert" else lk.linearize(encoder(), 7, **options)
    else:
        attention = {"full": "full", "mixed": ["full", "linformer"]}.get(kind, "linformer")
        model = randomise(LinformerModel(config(attention=attention))).eval()
    ids, before = tokens(5, 23), model.config._attn_implementation
    spectrum = attention_spectrum(model, [{"input_ids": ids[:2]}, {"input_ids": ids[2:]}])
    assert model.config._attn_implementation == before
    expected = curves(model, ids)
    assert spectrum.cumulative.shape == (2, 3, 7 if kind in ("ours", "linearised") else 23)
    np.testing.assert_allclose(spectrum.cumulative, expected.mean(0), atol=1e-5)
    np.testing.assert_allclose(spectrum.spread, expected.std(0), atol=1e-5)
    assert (spectrum.samples, spectrum.tokens) == (5, 5 * 23)


EXACT = {
    "linearised": {},
    "all heads": {"projection": "linear", "projection_initializer": "normal", "sharing": "layerwise"},
    "each head": {"projection": "linear", "sharing": "none", "projected_dim": [[3, 5, 7], [23, 2, 2]]},
    "global tokens": {"sliding_window": 0, "global_tokens": 3},
    "computed": {"projection": "dynamic", "global_tokens": 0},
    "ours": {"projected_dim": 7, "sliding_window": 4},
    "ours, causal": {"projected_dim": 7, "sliding_window": 6, "projection": "mean_pool", "causal": True},
    "ours, each head": {"projected_dim": [[2, 5, 7], [6, 2, 2]], "sliding_window": 5, "projection": "mean_pool"},
    "ours, global tokens": {"projected_dim": 7, "sharing": "none", "sliding_window": 3, "global_tokens": 2},
}


@pytest.mark.parametrize("kind", EXACT)
def test_with_exact_tokens_it_is_that_of_the_mapping_of_all_tokens(kind, config, monkeypatch):
    """Of M, n × n, made by hand: M times the values is what the heads give; also with padding."""
    if is_ours := kind.startswith("ours"):
        model = randomise(LinformerModel(config(**EXACT[kind]))).eval()
        parts = [(layer.self_attn, layer.self_attn.out_proj, layer.self_attn.v_proj) for layer in model.encoder.layers]
    else:
        options = {"projected_dim": 7, "sliding_window": 4, "global_tokens": 1}
        model = lk.linearize(encoder(max_position_embeddings=37), **options | EXACT[kind])
        layers = [layer.attention for layer in model.encoder.layer]
        parts = [(layer.self, layer.output.dense, layer.self.value) for layer in layers]
    ids, mask = tokens(2, 31), torch.ones(2, 31, dtype=torch.long)
    mask[1, [0, 1, 2, 11]] = 0
    order = torch.tensor([[*range(31)], [*range(3, 11), *range(12, 31), 0, 1, 2, 11]])
    heads, values, mappings = [], [], []
    by_layer = sv.singular_values
    monkeypatch.setattr(sv, "singular_values", lambda each: mappings.append(each) or by_layer(each))
    for attention, output, value in parts:
        attention.register_forward_pre_hook(lambda _, inputs, value=value: values.append(value(inputs[0])))
        output.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0]))
    spectrum = attention_spectrum(model, [{"input_ids": ids, "attention_mask": mask}])
    assert spectrum.cumulative.shape == (2, 3, 31) and len(heads) == len(values) == len(mappings) == 2
    for found, given, matrices in zip(heads, values, mappings, strict=True):
        if not is_ours:
            found, given = (take_positions(each, order) for each in (found, given))
        found, given = (zero_padding(each, torch.tensor([31, 27])) for each in (found, given))
        torch.testing.assert_close(merge_heads(matrices @ split_heads(given, 3)), found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("projection", "name"), [("max_pool", "MaxPoolProjection"), ("conv", "ConvProjection")])
def test_slots_that_are_no_sums_are_rejected_with_exact_tokens(projection, name, config):
    expected = "expected slots that are weighted sums of tokens, in a layer with a sliding window or global tokens, got"
    model = LinformerModel(config(projection=projection, sliding_window=6)).eval()
    with pytest.raises(InputError, match=f"^model: {expected} those of {name}$"):
        attention_spectrum(model, [{"input_ids": tokens(1, 7)}])
    model = LinformerModel(config(projection=projection)).eval()
    assert attention_spectrum(model, [{"input_ids": tokens(1, 23)}]).samples == 1


@pytest.mark.parametrize("ours", [True, False])
def test_padding_does_not_count(config, ours):
    """On either side, nor does a sequence of nothing else; the order of batches of other lengths is no matter."""
    model = randomise(LinformerModel(config(attention="full"))).eval() if ours else encoder()
    ids, mask = tokens(3, 23), torch.ones(3, 23, dtype=torch.long)
    mask[1, 13:] = 0
    mask[2] = 0
    padded = attention_spectrum(model, [{"input_ids": ids, "attention_mask": mask}])
    alone = [{"input_ids": ids[:1]}, {"input_ids": ids[1:2, :13]}]
    for batches in (alone, alone[::-1]):
        spectrum = attention_spectrum(model, batches)
        np.testing.assert_allclose(padded.cumulative, spectrum.cumulative, atol=1e-5)
        np.testing.assert_allclose(padded.spread, spectrum.spread, atol=1e-5)
        assert (padded.samples, padded.tokens) == (spectrum.samples, spectrum.tokens) == (2, 36)
    left = {"input_ids": ids[1:2, :13].roll(4, 1), "attention_mask": torch.tensor([[0] * 4 + [1] * 9])}
    shorter = attention_spectrum(model, [left])
    assert (shorter.cumulative[..., 8:] == 1).all() and (shorter.cumulative[..., 7] < 1).all()
    if ours:  # the positions of its tokens do not depend on padding
        moved = [{"input_ids": left["input_ids"][:, 4:]}]
        np.testing.assert_allclose(attention_spectrum(model, moved).cumulative, shorter.cumulative[..., :9], atol=1e-5)
    with pytest.raises(InputError, match="batches: expected at least one with a real token, got none"):
        attention_spectrum(model, [{"input_ids": ids[2:], "attention_mask": mask[2:]}])


def test_what_has_no_such_weights_is_rejected():
    batch = [{"input_ids": tokens(1, 7)}]
    t5 = encoder("t5", d_model=33, d_kv=11, num_heads=3, num_layers=1, d_ff=29)
    with pytest.raises(InputError, match="model: expected an encoder that returns attention weights, got a t5"):
        attention_spectrum(t5, [{**batch[0], "decoder_input_ids": tokens(1, 7)}])
    with pytest.raises(InputError, match="expected one in evaluation mode"):
        attention_spectrum(encoder().train(), batch)
    model = encoder()
    model.encoder.layer[1].attention.self.query.weight.data[0] = torch.nan
    with pytest.raises(InputError, match="got a NaN or infinity in the attention weights"):
        attention_spectrum(model, batch)


def spectrum_of(*shares: list[float], heads: int) -> Spectrum:
    """A spectrum by the shares of its singular values."""
    values = np.array(shares, dtype=float).reshape(-1, heads, len(shares[0]))
    cumulative = values.cumsum(-1) / values.sum(-1, keepdims=True)
    return Spectrum(cumulative, np.zeros_like(cumulative), samples=1, tokens=1)


STEEP, FLAT, BETWEEN = [8, 1, 1, 0, 0], [2, 2, 2, 2, 2], [4, 3, 2, 1, 0]
SPECTRUM = spectrum_of(STEEP, FLAT, BETWEEN, [5, 4, 1, 0, 0], [6, 2, 1, 1, 0], [6, 4, 0, 0, 0], heads=3)


def test_the_least_k_with_the_energy():
    """Means of the heads: 0.467, 0.7, 0.867, 0.933, 1 and 0.567, 0.9, 0.967, 1."""
    assert choose_projected_dims(SPECTRUM, energy=0.5) == [2, 1]
    assert choose_projected_dims(SPECTRUM, energy=0.9) == [4, 2]
    assert choose_projected_dims(SPECTRUM, energy=1.0) == [5, 4]
    for energy, said in ((0.0, "0.0"), ("a", "'a'"), (True, "True")):
        with pytest.raises(InputError, match=f"energy: expected a number above 0 and at most 1, got {said}"):
            choose_projected_dims(SPECTRUM, energy=energy)
