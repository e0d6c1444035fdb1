"""`LinformerAttention` against the plain reference, and further properties."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import ConvProjection, InputError, LinearProjection, LinformerAttention
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import randomise
from tests.reference.attention import attention_reference

EMBED, HEADS, N, K = 33, 3, 31, 7


def build(**arguments: object) -> LinformerAttention:
    return randomise(LinformerAttention(EMBED, HEADS, N, K, **arguments)).double()


def padding_mask(batch: int, seq_len: int) -> torch.Tensor:
    """Right padding, left padding and holes; the last sequence has none."""
    mask = torch.zeros(batch, seq_len, dtype=torch.bool)
    mask[0, seq_len - seq_len // 3 :] = True
    mask[1, : seq_len // 3] = True
    mask[2, ::3] = True
    return mask


@pytest.mark.parametrize(("bias", "masked", "seq_len"), [(True, True, 23), (False, False, N), (True, False, 1)])
def test_full_attention_equals_reference_with_gradients(bias, masked, seq_len):
    """The baseline; `test_properties` has the projections."""
    layer = build(projection=None, bias=bias)
    inputs = torch.randn(4, seq_len, EMBED, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(4, seq_len) if masked else None
    real = torch.ones(4, seq_len, dtype=torch.bool) if mask is None else ~mask
    direction = torch.randn(4, seq_len, EMBED, dtype=torch.float64)[real]
    parameters = [inputs, *layer.parameters()]
    fast = layer(inputs, inputs, inputs, mask)[0][real]
    plain = attention_reference(layer, inputs, inputs, inputs, mask)[real]
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    fast_gradients = torch.autograd.grad((fast * direction).sum(), parameters)
    plain_gradients = torch.autograd.grad((plain * direction).sum(), parameters)
    for ours, theirs in zip(fast_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * theirs.abs().max().clamp(min=1).item())


def test_what_stands_in_padding_does_not_reach_full_attention():
    layer = build(projection=None)
    inputs = torch.randn(3, 23, EMBED, dtype=torch.float64)
    mask = padding_mask(3, 23)

    def run(content):
        filled = inputs.masked_fill(mask[..., None], content)
        out = layer(filled, filled, filled, mask)[0][~mask]
        return out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))

    for clean, dirty in zip(run(0.0), run(float("nan")), strict=True):
        assert torch.equal(clean, dirty)


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


@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_layer_of_torch_can_look_at_another_text_through_one(training):
    """Cross-attention: its own length, its own padding; self-attention of the decoder stays torch's and causal."""
    layer = torch.nn.TransformerDecoderLayer(12, 3, 29, dropout=0.0, batch_first=True).train(training)
    attention = layer.multihead_attn = LinformerAttention(12, 3, max_seq_len=23, projected_dim=5).train(training)
    x, memory, mask = torch.randn(2, 11, 12), torch.randn(2, 17, 12), torch.zeros(2, 17, dtype=torch.bool)
    mask[0, 13:] = True
    causal = torch.nn.Transformer.generate_square_subsequent_mask(11)
    own = layer.self_attn(x, x, x, attn_mask=causal, need_weights=False)[0]
    hidden = layer.norm1(x + own)
    hidden = layer.norm2(hidden + attention(hidden, memory, memory, mask)[0])
    expected = layer.norm3(hidden + layer.linear2(layer.linear1(hidden).relu()))
    with torch.set_grad_enabled(training):
        out = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=mask)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_heads_cost_what_their_own_slots_cost(sharing):
    """Counted by torch: four heads of 64, 8, 8 and 8 slots, against the sum of what heads with one k each cost."""

    def cost(projected_dim) -> int:
        layer = LinformerAttention(32, 4, 96, projected_dim, sharing=sharing)
        x = torch.randn(1, 96, 32)
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(x, x, x)
        return counter.get_total_flops()

    fixed = 2 * 2 * 96 * 32 * 32  # W_Q and W_O
    each = {k: (cost(k) - fixed) / 4 for k in (64, 8)}
    if sharing == "headwise":  # E·X and F·X are formed and mapped once for all heads, with the largest k
        shared = {k: 2 * 2 * k * (96 * 32 + 32 * 32) for k in each}
        each = {k: each[k] - shared[k] / 4 for k in each}
        fixed += shared[64]
    assert cost([64, 8, 8, 8]) == fixed + each[64] + 3 * each[8]


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_half_precision_is_finite_at_the_longest_length(projection):
    layer = LinformerAttention(8, 2, 65_536, 64, projection=projection).half()
    x = torch.randn(1, 65_536, 8).half().requires_grad_()
    out, _ = layer(x, x, x)
    out.float().square().mean().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_a_projection_module_can_be_shared():
    shared = LinearProjection(N, K, num_heads=HEADS, sharing="layerwise")
    layers = torch.nn.ModuleList(LinformerAttention(EMBED, HEADS, projection=shared) for _ in range(2))
    assert sum(name.endswith("key_projection") for name, _ in layers.named_parameters()) == 1
    inputs = torch.randn(2, 23, EMBED)
    inside = layers[0](inputs, inputs, inputs)[0]
    outside = LinformerAttention(EMBED, HEADS, projection=None)
    outside.load_state_dict({k: v for k, v in layers[0].state_dict().items() if "projection" not in k})
    assert torch.equal(outside(inputs, inputs, inputs, projection=shared)[0], inside)


X = torch.zeros(2, 23, EMBED)
SHARED = LinearProjection(N, K, num_heads=HEADS, sharing="layerwise")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "is_causal: expected False: each slot mixes all positions"),
        ({"attn_mask": torch.zeros(23, 23)}, "attn_mask: expected None: each slot mixes all positions"),
        (
            {"query": X[0]},
            "query, key, value: expected all with a batch or all without, got [23, 33], [2, 23, 33], [2, 23",
        ),
        (dict.fromkeys(("query", "key", "value"), X[None]), "key: expected [batch, length, 33], got [1, 2, 23, 33]"),
        ({"key": X[..., :5]}, "key: expected [batch, length, 33], got [2, 23, 5]"),
        ({"value": X[:, :5]}, "key, value: expected one batch size and one length"),
        ({"key": torch.zeros(2, 37, EMBED), "value": torch.zeros(2, 37, EMBED)}, "expected at most 31, got 37"),
        ({"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}, "expected bool [2, 23], True where padded, got"),
        ({"key_padding_mask": torch.ones(2, 23)}, "expected bool, or floating point of 0 at real tokens"),
        ({"key_padding_mask": [[False] * 23] * 2}, "key_padding_mask: expected a tensor, a Padding or None, got list"),
        ({"key": X[:, :0], "value": X[:, :0]}, "key: expected at least one position, got none"),
    ],
)
@pytest.mark.unchecked
def test_calls_refused(arguments, message):
    layer = LinformerAttention(EMBED, HEADS, N, K)
    with pytest.raises(InputError, match=re.escape(message)):
        layer(**{"query": X, "key": X, "value": X, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads: expected a divisor of embed_dim 33, got 5"),
        ({"dropout": 1.5}, "dropout: expected a number from 0 up to but not 1, got 1.5"),
        ({"projected_dim": 2.5}, "projected_dim: expected 1 to 31 (the longest sequence), got 2.5"),
        ({"projection": torch.nn.Linear(3, 3)}, "projection: expected a name, a projection module or None, got Linear"),
        (
            {"projection": SHARED, "sharing": "headwise"},
            "sharing: expected 'layerwise', as the projection has, got 'headwise'",
        ),
        ({"projection": SHARED, "projected_dim": 9}, "projected_dim: expected 1 to 7 (those of the projection), got 9"),
        ({"projected_dim": None}, "max_seq_len and projected_dim: expected a number each, got None"),
    ],
)
def test_constructions_refused(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        LinformerAttention(**{"embed_dim": 33, "num_heads": 3, "max_seq_len": 31, "projected_dim": 7, **arguments})


def test_projected_dim_follows():
    """Fewer slots and back, more windows, and another projection for one call."""
    layer, x = LinformerAttention(EMBED, HEADS, 28, 7, projection="mean_pool"), torch.randn(2, 28, EMBED)
    layer.projected_dim = 5
    assert layer.projected_dim == 5 and layer(x, x, x, need_weights=True)[1].shape[-1] == 5
    layer.projected_dim = None
    layer.projection.resize(56, "extend")
    assert layer.projected_dim == 14
    other = LinearProjection(31, 3, num_heads=HEADS)
    assert layer(x, x, x, need_weights=True, projection=other)[1].shape[-1] == 3
    larger = LinearProjection(31, 17, num_heads=HEADS)
    assert layer(x, x, x, need_weights=True, projection=larger)[1].shape[-1] == 17


@pytest.mark.parametrize("refused", [8, [5, 3]])
def test_a_refused_projected_dim_is_not_kept(refused):
    layer, x = LinformerAttention(EMBED, HEADS, 31, 7).eval(), torch.randn(2, 28, EMBED)
    before = layer(x, x, x)[0]
    with pytest.raises(InputError, match="projected_dim: expected"):
        layer.projected_dim = refused
    assert layer.projected_dim == 7 and torch.equal(layer(x, x, x)[0], before)


def test_a_kernel_for_other_heads_is_refused():
    layer = LinformerAttention(EMBED, HEADS, projection=ConvProjection(N, K, num_heads=HEADS, head_dim=5))
    with pytest.raises(InputError, match="head_dim: expected 5, as the kernel has, got 11"):
        layer(X, X, X)


@pytest.mark.parametrize("projection", ["linear", None])
@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_acts_while_training_only(projection, need_weights):
    layer, x = LinformerAttention(EMBED, HEADS, N, K, projection=projection, dropout=0.5), torch.randn(2, 23, EMBED)

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


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="mask"):
        LinformerAttention(EMBED, HEADS, N, K)(X, X, X, mask=None)
    with pytest.raises(TypeError, match="causal"):
        LinformerAttention(EMBED, HEADS, N, K, causal=True)
