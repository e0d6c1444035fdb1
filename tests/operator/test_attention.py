"""`LinformerAttention` as a layer: within torch's own, in half precision, with dropout, and what it rejects."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import InputError, LinearProjection, LinformerAttention
from linformer_kit.operator.projections import PROJECTIONS, FullAttention

EMBED, HEADS, N, K = 33, 3, 31, 7


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_an_encoder_of_torch_can_hold_them(before, gradients):
    """Put into the layer before it is copied or into each layer after; ordinary right padding is what torch would fuse."""
    layer = torch.nn.TransformerEncoderLayer(12, 2, 29, dropout=0.0, batch_first=True)
    if before:
        layer.self_attn = LinformerAttention(12, 2, max_seq_len=23, projected_dim=5)
    encoder = torch.nn.TransformerEncoder(layer, num_layers=2)
    if not before:
        for layer in encoder.layers:
            layer.self_attn = LinformerAttention(12, 2, max_seq_len=23, projected_dim=5)
    x, mask = torch.randn(2, 17, 12), torch.zeros(2, 17, dtype=torch.bool)
    mask[0, 11:] = True
    expected = encoder.train()(x, src_key_padding_mask=mask)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(encoder.eval()(x, src_key_padding_mask=mask)[~mask], expected[~mask])


CAUSAL = {"projection": "mean_pool", "sliding_window": 5, "causal": True}  # 31 tokens in 7 windows
CAUSAL_KINDS = [{"max_seq_len": N, "projected_dim": K, **CAUSAL}, {"projection": None, "causal": True}]
LATER = torch.ones(23, 23, dtype=torch.bool).triu(1)
LATER_SCORES = nn.Transformer.generate_square_subsequent_mask(23)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
@pytest.mark.parametrize("arguments", CAUSAL_KINDS)
@pytest.mark.parametrize("gradients", [True, False])
def test_causal_layers_of_torch_can_hold_them(gradients, arguments):
    """An encoder and a decoder give with their mask, or only the word that it is causal, what they give without."""
    sizes = {"dropout": 0.0, "batch_first": True}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED, HEADS, 29, **sizes), num_layers=2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(EMBED, HEADS, 29, **sizes), num_layers=2)
    for layer in (*encoder.layers, *decoder.layers):
        layer.self_attn = LinformerAttention(EMBED, HEADS, **arguments)
    x, memory = torch.randn(2, 23, EMBED), torch.randn(2, 7, EMBED)
    padding = torch.zeros(2, 23, dtype=torch.bool)
    padding[0, 17:] = True
    calls = (
        lambda mask, causal: encoder.eval()(x, mask, padding, is_causal=causal),
        lambda mask, causal: decoder.eval()(x, memory, mask, None, padding, tgt_is_causal=causal),
    )
    for call in calls:
        with torch.set_grad_enabled(gradients):
            expected = call(None, False)
            for mask, causal in ((None, True), (LATER, True), (LATER, False), (LATER_SCORES, None)):
                torch.testing.assert_close(call(mask, causal)[~padding], expected[~padding])


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_half_precision_is_finite_at_the_longest_length(projection):
    layer = LinformerAttention(8, 2, 65_536, 64, projection=projection).half()
    x = torch.randn(1, 65_536, 8).half().requires_grad_()
    out, _ = layer(x, x, x)
    out.float().square().mean().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


X = torch.zeros(2, 23, EMBED)
SLOTS, WINDOW = {"max_seq_len": N, "projected_dim": K}, {"max_seq_len": N, "projected_dim": K, "sliding_window": 3}
FULL, FULL_ONLY = FullAttention(HEADS), {"projection": None, "max_seq_len": None, "projected_dim": None}


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (SLOTS, {"is_causal": True}, "is_causal: expected False: each slot mixes several positions"),
        (SLOTS, {"attn_mask": LATER}, "attn_mask: expected None: each slot mixes several positions"),
        (SLOTS, {"key": torch.zeros(2, 37, EMBED), "value": torch.zeros(2, 37, EMBED)}, "expected at most 31, got 37"),
        (SLOTS, {"key_padding_mask": LATER[:2, :5]}, "expected bool [2, 23], True where padded, got"),
        (SLOTS, {"key_padding_mask": torch.ones(2, 23)}, "key_padding_mask: expected bool, or floating point of 0 at"),
        (SLOTS, {"key": X[:, :0], "value": X[:, :0]}, "key: expected at least one position, got 0"),
        (SLOTS, {"value": X[:, :19]}, "query, key, value: expected one batch size, and one length of key and value"),
        (SLOTS, {"value": X.numpy()}, "value: expected a tensor, got 'ndarray'"),
        (SLOTS, {"query": X.double()}, "query: expected torch.float32, as the weights are, got torch.float64"),
        (WINDOW, {"query": X[:, :19]}, "query, key: expected one length with sliding_window, got (19, 23)"),
        *(
            (kind, arguments, message)
            for kind in CAUSAL_KINDS
            for arguments, message in (
                (
                    {"attn_mask": LATER.T},
                    "attn_mask: expected None, or a bool or float mask of [23, 23] that hides all",
                ),
                ({"attn_mask": LATER & (LATER.cumsum(1) < 9)}, "hides all later tokens and no others, got another one"),
                ({"attn_mask": LATER_SCORES - 0.5}, "hides all later tokens and no others, got another one"),
                ({"attn_mask": LATER.long()}, "hides all later tokens and no others, got torch.int64 [23, 23]"),
                ({"attn_mask": LATER.tolist()}, "attn_mask: expected a tensor, got 'list'"),
                ({"query": X[:, :19]}, "query, key: expected one length with causal, got (19, 23)"),
            )
        ),
    ],
)
@pytest.mark.unchecked
def test_calls_rejected(kind, arguments, message):
    layer = LinformerAttention(EMBED, HEADS, **kind)
    with pytest.raises(InputError, match=re.escape(message)):
        layer(**{"query": X, "key": X, "value": X, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads: expected a divisor of embed_dim 33, got 5"),
        ({"max_seq_len": None}, "max_seq_len: expected a positive integer, got None"),
        ({"projection": nn.Linear(3, 3)}, "projection: expected a name, a projection module or None, got 'Linear'"),
        ({"projected_dim": None}, "projected_dim: expected 1 to 31 (the longest sequence), got None"),
        ({"bias_order": "after_projection", "sharing": "none"}, "bias_order: expected before_projection, unless E and"),
        ({"projection": FULL}, "max_seq_len: expected None, since full attention has none, got 31"),
        (FULL_ONLY | {"projected_dim": 7}, "projected_dim: expected None, since full attention has none, got 7"),
        (FULL_ONLY | {"sharing": "none"}, "sharing: expected None, since full attention has none, got 'none'"),
        ({"projection": "conv", "projection_initializer": "pooling"}, "projection_initializer: expected None without"),
        ({"sliding_window": 1.5}, "sliding_window: expected an integer from 0 to 16,777,216, got 1.5"),
        ({"sliding_window": True}, "sliding_window: expected an integer from 0 to 16,777,216, got True"),
        ({"causal": True}, "projection: expected one with windows (such as mean_pool), or full attention, with causal"),
        ({**CAUSAL, "causal": 1}, "causal: expected True or False, got 1"),
        ({"bias": 0}, "bias: expected True or False, got 0"),
        ({"batch_first": "no"}, "batch_first: expected True or False, got 'no'"),
        ({**CAUSAL, "shorter_input": "stretch"}, "shorter_input: expected prefix with causal, got 'stretch'"),
        ({**CAUSAL, "projected_dim": [7, 6, 7]}, "sliding_window: expected at least 6 with causal"),
    ],
)
def test_constructions_rejected(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        LinformerAttention(**{"embed_dim": 33, "num_heads": 3, "max_seq_len": 31, "projected_dim": 7, **arguments})


def test_a_causal_layer_whose_windows_grow_is_rejected():
    """With fewer slots, or another projection, than it was made with."""
    layer = LinformerAttention(EMBED, HEADS, N, K, **CAUSAL)
    for name, value, message in (
        ("projected_dim", 6, "sliding_window: expected at least 6 with causal"),
        ("projection", LinearProjection(N, K, num_heads=HEADS), "projection: expected one with windows"),
    ):
        before = getattr(layer, name)
        setattr(layer, name, value)
        with pytest.raises(InputError, match=re.escape(message)):
            layer(X, X, X)
        setattr(layer, name, before)
    layer(X, X, X)


@pytest.mark.parametrize("arguments", [{"max_seq_len": N, "projected_dim": K}, {"projection": None}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_acts_while_training_only(arguments, need_weights):
    layer, x = LinformerAttention(EMBED, HEADS, **arguments, dropout=0.5), torch.randn(2, 23, EMBED)

    def run() -> torch.Tensor:
        return layer(x, x, x, need_weights=need_weights)[0]

    assert not torch.equal(run(), run())
    layer.eval()
    assert torch.equal(run(), run())


def test_with_e_equal_to_f_the_sequence_is_compressed_once():
    """Counted by torch: beside E·X itself nothing of the size of the sequence but W_Q, W_O and attention."""

    def cost(sharing: str) -> int:
        layer, x = LinformerAttention(32, 4, 96, 8, sharing=sharing), torch.randn(1, 96, 32)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(x, x, x)
        return counter.get_total_flops()

    assert cost("headwise") - cost("key_value") == 2 * 8 * 96 * 32
