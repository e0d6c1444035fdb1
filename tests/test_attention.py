"""`LinformerAttention` against the plain reference, and the properties that other implementations lack."""

from __future__ import annotations

import re

import pytest
import torch

from linformer_kit import InputError, LinearProjection, LinformerAttention
from linformer_kit.functional import AttentionWeights, full_attention_reference, linformer_attention_reference
from tests.conftest import SHARINGS, randomise
from tests.reference.projections import plain_projections

EMBED, HEADS, N, K = 33, 3, 31, 7


def build(sharing: str = "headwise", **arguments: object) -> LinformerAttention:
    layer = LinformerAttention(EMBED, HEADS, N, K, sharing=sharing, **arguments)
    return randomise(layer).double()


def reference(layer: LinformerAttention, query, key, value, padding=None):
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    weights = AttentionWeights(*(m.weight for m in maps), *(m.bias for m in maps))
    if layer.projection is None:
        return full_attention_reference(query, key, value, weights, HEADS, padding)
    maps = plain_projections(layer.projection, layer.projected_dim)
    return linformer_attention_reference(query, key, value, weights, *maps, padding, layer.bias_order)


def padding_mask(batch: int, seq_len: int) -> torch.Tensor:
    """Right padding, left padding and holes; the last sequence has none."""
    mask = torch.zeros(batch, seq_len, dtype=torch.bool)
    mask[0, seq_len - seq_len // 3 :] = True
    mask[1, : seq_len // 3] = True
    mask[2, ::3] = True
    return mask


@pytest.mark.parametrize("sharing", [*SHARINGS, "full"])
@pytest.mark.parametrize("bias_order", ["before_projection", "after_projection"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("seq_len", [N, 23, 5, 1])
def test_equals_reference_with_gradients(sharing, bias_order, bias, masked, seq_len):
    if sharing == "full":
        layer = randomise(LinformerAttention(EMBED, HEADS, projection=None, bias=bias)).double()
    else:
        layer = build(sharing, bias=bias, bias_order=bias_order)
    inputs = torch.randn(4, seq_len, EMBED, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(4, seq_len) if masked and seq_len > 3 else None
    real = torch.ones(4, seq_len, dtype=torch.bool) if mask is None else ~mask
    direction = torch.randn(4, seq_len, EMBED, dtype=torch.float64)[real]
    parameters = [inputs, *layer.parameters()]
    fast = layer(inputs, inputs, inputs, mask)[0][real]
    plain = reference(layer, inputs, inputs, inputs, mask)[real]
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    fast_gradients = torch.autograd.grad((fast * direction).sum(), parameters)
    plain_gradients = torch.autograd.grad((plain * direction).sum(), parameters)
    for ours, theirs in zip(fast_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * theirs.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("sharing", SHARINGS)
def test_key_and_value_may_be_other_tensors_than_the_query(sharing):
    layer = build(sharing)
    query = torch.randn(3, 13, EMBED, dtype=torch.float64)
    key, value = torch.randn(2, 3, 23, EMBED, dtype=torch.float64)
    mask = padding_mask(3, 23)
    out, _ = layer(query, key, value, mask)
    torch.testing.assert_close(out, reference(layer, query, key, value, mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sharing", [*SHARINGS, "full"])
def test_weights_are_those_that_the_output_comes_from(sharing):
    layer = build("headwise", projection=None) if sharing == "full" else build(sharing)
    inputs = torch.randn(3, 23, EMBED, dtype=torch.float64)
    mask = padding_mask(3, 23)
    without, none = layer(inputs, inputs, inputs, mask)
    out, weights = layer(inputs, inputs, inputs, mask, need_weights=True)
    assert none is None
    assert weights.shape == (3, HEADS, 23, 23 if sharing == "full" else K)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, HEADS, 23, dtype=torch.float64))
    torch.testing.assert_close(out, without)


@pytest.mark.parametrize("sharing", [*SHARINGS, "full"])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_what_stands_in_padding_reaches_neither_output_nor_gradient(sharing, garbage):
    layer = build("headwise", projection=None) if sharing == "full" else build(sharing)
    inputs = torch.randn(3, 23, EMBED, dtype=torch.float64)
    mask = padding_mask(3, 23)

    def run(content):
        filled = inputs.masked_fill(mask[..., None], content)
        out = layer(filled, filled, filled, mask)[0][~mask]
        return out, torch.autograd.grad(out.square().sum(), list(layer.parameters()))

    (clean, clean_gradients), (dirty, dirty_gradients) = run(0.0), run(garbage)
    assert torch.equal(clean, dirty)
    for ours, theirs in zip(dirty_gradients, clean_gradients, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_samples_do_not_see_each_other(sharing):
    layer = build(sharing)
    inputs = torch.randn(3, 23, EMBED, dtype=torch.float64)
    out, _ = layer(inputs, inputs, inputs)
    alone, _ = layer(inputs[1:2], inputs[1:2], inputs[1:2])
    torch.testing.assert_close(out[1:2], alone, rtol=1e-12, atol=1e-12)


def test_key_value_sharing_keeps_both_weight_matrices():
    layer = build("key_value")
    assert layer.k_proj.weight is not layer.v_proj.weight
    assert not torch.equal(layer.k_proj.weight, layer.v_proj.weight)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_a_transformer_layer_of_torch_can_hold_one(training, masked):
    layer = torch.nn.TransformerEncoderLayer(12, 3, 29, dropout=0.0, batch_first=True).train(training)
    attention = layer.self_attn = LinformerAttention(12, 3, max_seq_len=23, projected_dim=5).train(training)
    x, mask = torch.randn(2, 17, 12), torch.zeros(2, 17, dtype=torch.bool)
    mask[0, 11:] = masked
    hidden = layer.norm1(x + attention(x, x, x, mask)[0])
    expected = layer.norm2(hidden + layer.linear2(layer.linear1(hidden).relu()))
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(layer(x, src_key_padding_mask=mask if masked else None), expected)


def test_padding_masks_as_scores():
    attention, x = LinformerAttention(12, 3, max_seq_len=23, projected_dim=5), torch.randn(2, 17, 12)
    mask = torch.zeros(2, 17, dtype=torch.bool)
    mask[0, 11:] = True
    scores = torch.zeros(2, 17).masked_fill(mask, -torch.inf)
    assert torch.equal(attention(x, x, x, scores)[0], attention(x, x, x, mask)[0])
    with pytest.raises(InputError, match="expected bool, or floating point of only 0 and -inf"):
        attention(x, x, x, (~mask).float())


def test_a_projection_module_can_be_shared():
    shared = LinearProjection(N, K, num_heads=HEADS, sharing="layerwise")
    layers = torch.nn.ModuleList(LinformerAttention(EMBED, HEADS, projection=shared) for _ in range(2))
    assert sum(name.endswith("key_projection") for name, _ in layers.named_parameters()) == 1
    inputs = torch.randn(2, 23, EMBED)
    inside = layers[0](inputs, inputs, inputs)[0]
    outside = LinformerAttention(EMBED, HEADS, projection=None)
    outside.load_state_dict({k: v for k, v in layers[0].state_dict().items() if "projection" not in k})
    assert torch.equal(outside(inputs, inputs, inputs, projection=shared)[0], inside)


def test_a_layer_of_the_longest_length_starts_as_healthy_as_a_short_one():
    """The scale of projected keys does not depend on n (the start of others grows as √n)."""
    for n in (512, 65_536):
        layer = LinformerAttention(8, 2, n, 128)
        keys = layer.projection.key_projection @ torch.randn(n, 8)
        assert 0.8 < keys.std() < 1.2


X = torch.zeros(2, 23, EMBED)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "is_causal: expected False: each slot mixes all positions"),
        ({"attn_mask": torch.zeros(23, 23)}, "attn_mask: expected None: each slot mixes all positions"),
        ({"query": X[0]}, "query: expected [batch, length, 33], got [23, 33]"),
        ({"key": X[..., :5]}, "key: expected [batch, length, 33], got [2, 23, 5]"),
        ({"value": X[:, :5]}, "query, key, value: expected one batch size, and key and value of one length"),
        ({"key": torch.zeros(2, 37, EMBED), "value": torch.zeros(2, 37, EMBED)}, "expected at most 31, got 37"),
        ({"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}, "expected bool [2, 23], True where padded, got"),
        ({"key_padding_mask": torch.ones(2, 23).long()}, "got torch.int64 [2, 23]"),
        ({"key_padding_mask": torch.ones(2, 23)}, "expected bool, or floating point of only 0 and -inf"),
    ],
)
def test_calls_refused(arguments, message):
    layer = LinformerAttention(EMBED, HEADS, N, K)
    with pytest.raises(InputError, match=re.escape(message)):
        layer(**{"query": X, "key": X, "value": X, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads: expected a divisor of embed_dim 33, got 5"),
        ({"num_heads": "3"}, "num_heads: expected a divisor of embed_dim 33, got '3'"),
        ({"embed_dim": 0}, "embed_dim: expected a positive integer, got 0"),
        ({"dropout": 1.5}, "dropout: expected a number from 0 up to but not 1, got 1.5"),
        ({"projected_dim": 2.5}, "projected_dim: expected 1 to 31 (the longest sequence), got 2.5"),
        ({"bias_order": "never"}, "bias_order: expected one of before_projection, after_projection, got 'never'"),
        ({"projected_dim": None}, "max_seq_len and projected_dim: expected a number each, got None"),
    ],
)
def test_constructions_refused(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        LinformerAttention(**{"embed_dim": 33, "num_heads": 3, "max_seq_len": 31, "projected_dim": 7, **arguments})


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="mask"):
        LinformerAttention(EMBED, HEADS, N, K)(X, X, X, mask=None)
    with pytest.raises(TypeError, match="causal"):
        LinformerAttention(EMBED, HEADS, N, K, causal=True)
