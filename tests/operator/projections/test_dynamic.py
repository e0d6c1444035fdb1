"""The dynamic projection: weights of positions that follow from the tokens."""

from __future__ import annotations

import re

import pytest
import torch

from linformer_kit import DynamicProjection, InputError, LinformerAttention
from tests.conftest import SHARINGS, pairs_of, randomise
from tests.reference.attention import attention_reference

EMBED, HEADS, N, K = 21, 3, 31, 7
DIMS = [K, [5, 2, 7]]


def build(projected_dim=K, **arguments) -> LinformerAttention:
    arguments = {"projection": "dynamic", **arguments}
    return randomise(LinformerAttention(EMBED, HEADS, None, projected_dim, **arguments)).double()


def masked(length: int) -> torch.Tensor:
    """Padding on the right, on the left, in the middle, everywhere, nowhere."""
    padding = torch.zeros(5, length, dtype=torch.bool)
    padding[0, length - 5 :] = padding[1, :3] = padding[2, 1::3] = padding[3] = True
    return padding


@pytest.mark.parametrize(
    ("sharing", "projected_dim", "fewer", "window", "length"),
    pairs_of(SHARINGS, DIMS, [None, [3, 1, 2]], [0, 5], [N, 5, 41]),
)
@pytest.mark.parametrize("cross", [False, True])
def test_equals_the_reference(sharing, projected_dim, fewer, window, length, cross):
    """Outputs and gradients; the last length is more than any number here."""
    layer = build(projected_dim, sharing=sharing, sliding_window=window)
    layer.projected_dim = fewer
    padding = masked(length)
    key = torch.randn(5, length, EMBED, dtype=torch.float64, requires_grad=True)
    value = torch.randn_like(key, requires_grad=True) if cross else key
    real, found = ~padding, []
    real[3] = True  # slots of no token are zero, for any query
    for call in (layer, lambda *inputs: (attention_reference(layer, *inputs),)):
        out = call(key, key, value, padding)[0][real]
        wanted = [key, value, *layer.parameters()]
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10 * plain.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_gradients_are_derivatives(sharing):
    layer, padding = build(2, sharing=sharing), masked(7)
    tokens_in = torch.randn(5, 7, EMBED, dtype=torch.float64)
    names = ["projection.key_projection", "k_proj.weight", "v_proj.bias"]
    parameters = dict(layer.named_parameters())

    def run(*changed: torch.Tensor) -> torch.Tensor:
        with_them = dict(zip(names, changed, strict=True))
        return torch.func.functional_call(layer, with_them, (tokens_in, tokens_in, tokens_in, padding))[0].sum(dim=1)

    assert torch.autograd.gradcheck(run, tuple(parameters[name] for name in names), fast_mode=True)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_weights_are_a_softmax_over_the_real_tokens(sharing):
    """With W_K and W_V the identity and one head, slots are the weighted means of the tokens."""
    layer = LinformerAttention(EMBED, 1, None, K, projection="dynamic", sharing=sharing, bias=False).double()
    with torch.no_grad():
        for linear in (layer.k_proj, layer.v_proj):
            linear.weight.copy_(torch.eye(EMBED))
    hidden, padding = torch.randn(5, N, EMBED, dtype=torch.float64), masked(N)
    (slots,) = layer.project(hidden, hidden, padding)
    weights = layer.projection.key_projection.view(K, EMBED)
    for sample in (0, 1, 2, 4):
        rows = hidden[sample][~padding[sample]]
        expected = torch.stack([(rows @ weight).softmax(dim=0) @ rows for weight in weights])
        torch.testing.assert_close(slots.key[sample, 0], expected, rtol=1e-10, atol=1e-10)
    assert not slots.key[3].any() and not slots.value[3].any()
    assert torch.equal(slots.key, slots.value)


@pytest.mark.parametrize(
    ("sharing", "projected_dim", "shape"),
    [
        ("none", K, (HEADS, K, EMBED)),
        ("none", [5, 2, 7], (14, EMBED)),
        ("headwise", K, (K, EMBED)),
        ("key_value", [5, 2, 7], (K, EMBED)),
        ("layerwise", K, (K, EMBED)),
    ],
)
def test_its_one_parameter(sharing, projected_dim, shape):
    projection = DynamicProjection(N, projected_dim, num_heads=HEADS, head_dim=EMBED // HEADS, sharing=sharing)
    assert {name: tuple(values.shape) for name, values in projection.named_parameters()} == {"key_projection": shape}
    assert projection.tied and projection.matrix_count() == (HEADS if sharing == "none" else 1)
    before = projection.key_projection.clone()
    projection.reset_parameters()
    assert not torch.equal(projection.key_projection, before)


def test_scores_start_with_variance_one():
    projection = DynamicProjection(None, 64, num_heads=8, head_dim=32, sharing="none")
    scores = torch.randn(512, 256) @ projection.key_projection.flatten(0, 1).T
    assert scores.std().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_as_float32(dtype):
    """Of 60,001 equal weights each is far below the resolution of half precision beside their sum, which is 1."""
    layer = LinformerAttention(2, 1, None, 1, projection="dynamic", bias=False)
    with torch.no_grad():
        layer.v_proj.weight.copy_(torch.eye(2))
        layer.projection.key_projection.zero_()
    hidden = torch.ones(1, 60_001, 2)
    (slots,) = layer.to(dtype).project(hidden.to(dtype), hidden.to(dtype))
    torch.testing.assert_close(slots.value.float(), torch.ones(1, 1, 1, 2), rtol=0.01, atol=0)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_large_scores_stay_finite():
    layer = build()
    hidden = (torch.randn(5, N, EMBED, dtype=torch.float64) * 1e6).requires_grad_()
    with torch.autograd.detect_anomaly():  # raises for a NaN in any step, one of a text of padding only too
        out = layer(hidden, hidden, hidden, masked(N))[0]
        out.sum().backward()
    assert out.isfinite().all() and hidden.grad.isfinite().all()


@pytest.mark.parametrize("seq_len", [None, N])
def test_resizing_changes_no_number(seq_len):
    layer = LinformerAttention(EMBED, HEADS, seq_len, K, projection="dynamic")
    hidden, before = torch.randn(2, 59, EMBED), layer.projection.key_projection
    expected = layer(hidden, hidden, hidden)[0]
    for mode, length in (("extend", 61), ("extend", K), ("interpolate", 17), ("interpolate", 1009)):
        layer.projection.resize(length, mode)
        assert layer.projection.seq_len == length and layer.projection.key_projection is before
        assert torch.equal(layer(hidden, hidden, hidden)[0], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"projected_dim": None}, "projected_dim: expected a number, got None"),
        ({"projected_dim": 0}, "projected_dim: expected a positive integer, got 0"),
        ({"max_seq_len": 5}, "projected_dim: expected 1 to 5 (the longest sequence), got 7"),
        ({"max_seq_len": 0}, "seq_len: expected a positive integer, got 0"),
        ({"projection": "linear"}, "max_seq_len and projected_dim: expected a number each, got None"),
        ({"projection": "random"}, "max_seq_len and projected_dim: expected a number each, got None"),
        ({"projection_initializer": "nonsense"}, "projection_initializer: expected one of pooling, "),
        ({"sharing": "all"}, "sharing: expected one of none, headwise, key_value, layerwise, got 'all'"),
    ],
)
def test_refusals(arguments, message):
    good = {"max_seq_len": None, "projected_dim": K, "projection": "dynamic"}
    with pytest.raises(InputError, match=re.escape(message)):
        LinformerAttention(EMBED, HEADS, **{**good, **arguments})


@pytest.mark.parametrize(("mode", "length"), [("extend", K - 1), ("interpolate", K - 1), ("crop", 37)])
def test_resizing_refused(mode, length):
    projection = DynamicProjection(N, K, num_heads=HEADS, head_dim=5)
    with pytest.raises(InputError, match=f"^{'mode' if mode == 'crop' else 'seq_len'}: expected"):
        projection.resize(length, mode)
    assert projection.seq_len == N


def test_tokens_of_another_width_refused():
    layer = LinformerAttention(EMBED, HEADS, projection=DynamicProjection(N, K, num_heads=HEADS, head_dim=5))
    with pytest.raises(InputError, match="embed_dim: expected 15, as W_P has, got 21"):
        layer(*[torch.randn(2, 5, EMBED)] * 3)
