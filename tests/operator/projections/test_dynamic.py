"""The dynamic projection: weights of positions that follow from the tokens."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention
from linformer_kit.operator.slots import ForwardPass
from tests.conftest import randomise

EMBED, HEADS, N, K = 21, 3, 31, 7


def masked(length: int) -> torch.Tensor:
    """Padding on the right, on the left, in the middle, everywhere, nowhere."""
    padding = torch.zeros(5, length, dtype=torch.bool)
    padding[0, length - 5 :] = padding[1, :3] = padding[2, 1::3] = padding[3] = True
    return padding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_as_float32(dtype):
    """Of 60,001 equal weights each is far below the resolution of half precision beside their sum, which is 1."""
    layer = LinformerAttention(2, 1, None, 1, projection="dynamic", bias=False)
    with torch.no_grad():
        layer.v_proj.weight.copy_(torch.eye(2))
        layer.projection.key_projection.zero_()
    hidden = torch.ones(1, 60_001, 2)
    slots = layer.to(dtype).project(hidden.to(dtype), None, ForwardPass.of(hidden))
    torch.testing.assert_close(slots.value.float(), torch.ones(1, 1, 1, 2), rtol=0.01, atol=0)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_large_scores_stay_finite():
    layer = randomise(LinformerAttention(EMBED, HEADS, None, K, projection="dynamic")).double()
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
