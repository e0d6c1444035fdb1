"""The n → k maps: counts, shapes, starts and rejections."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch

from linformer_cli.settings import ProjectionName
from linformer_kit import InputError, LinearProjection, MeanPoolProjection, RandomProjection
from linformer_kit.operator.kernels import Kernels, choose
from linformer_kit.operator.projections import PROJECTIONS, Tokens
from linformer_kit.operator.slots import ForwardPass


def test_random_entries_have_variance_one_over_k():
    """The matrix of Theorems 1 and 2, whatever n is; extended, its new columns are like the old ones."""
    for k, n in ((16, 4096), (64, 2048)):
        projection = RandomProjection(n, k, num_heads=3)
        assert projection.matrix.std().item() == pytest.approx(k**-0.5, rel=0.02)
        old = projection.matrix.clone()
        projection.resize(2 * n, "extend")
        assert torch.equal(projection.matrix[:, :n], old)
        assert projection.matrix[:, n:].std().item() == pytest.approx(k**-0.5, rel=0.02)
        assert not torch.equal(projection.matrix[:, n:], old)


def test_means_of_large_numbers_do_not_overflow():
    hidden = torch.full((1, 37, 11), 6e4, dtype=torch.float16)
    for kernels in (choose(hidden), Kernels()):
        windows = MeanPoolProjection(37, 5, num_heads=1).windows(37, 5, ForwardPass(kernels))
        assert torch.equal(windows.means(hidden), hidden[:, :5])


def test_kernels_start_as_scaled_means():
    window = 64
    kernel = PROJECTIONS["conv"](5 * window, 5, num_heads=2, head_dim=3).key_projection
    summed = kernel.sum(dim=-1)  # what a window of equal tokens gives
    torch.testing.assert_close(summed, window**0.5 * torch.ones(3))
    assert torch.equal(kernel, kernel[..., :1].expand_as(kernel))


@pytest.mark.parametrize("name", ["linear", "conv"])
@pytest.mark.parametrize("mode", ["extend", "interpolate"])
def test_frozen_projections_stay_frozen(name, mode):
    arguments = {"head_dim": 3} if name == "conv" else {}
    projection = PROJECTIONS[name](12, 4, num_heads=2, **arguments).requires_grad_(False)
    projection.resize(24, mode)
    assert [parameter.requires_grad for parameter in projection.parameters()] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"projected_dim": 32}, "projected_dim: expected 1 to 31 (the longest sequence), got 32"),
        ({"sharing": "all"}, "sharing: expected one of none, headwise, key_value, layerwise, got 'all'"),
        ({"shorter_input": "all"}, "shorter_input: expected one of prefix, stretch, got 'all'"),
        *(
            ({"name": name, "shorter_input": "stretch"}, "shorter_input: expected prefix, or a projection with windows")
            for name in ("linear", "random", "dynamic")
        ),
        *(
            ({"name": name, "head_dim": None}, "head_dim: expected the width of a head, got None")
            for name in ("conv", "dynamic")
        ),
        ({"projected_dim": [7, 5]}, "projected_dim: expected one number for each of 3 heads, got 2"),
    ],
)
def test_rejections(arguments, message):
    good = {"name": "linear", "seq_len": 31, "projected_dim": 7, "num_heads": 3, "head_dim": 5}
    name, *given = (good | arguments).items()
    with pytest.raises(InputError, match=re.escape(message)):
        PROJECTIONS[name[1]](**dict(given))


def test_the_names_on_the_command_line_are_the_names_in_the_code():
    assert set(get_args(ProjectionName)) == set(PROJECTIONS)


def test_means_count_in_mixed_precision_and_keep_an_infinite_token_in_its_window():
    """Windows of more tokens than bfloat16 can count."""
    n, k = 1028, 4
    tokens = torch.randn(1, 1, n, 3)
    tokens[0, 0, n // 2, 1] = torch.inf
    expected = tokens.unflatten(2, (k, -1)).mean(dim=3)
    for requires_grad in (False, True):  # in one pass, and by products
        given = tokens.clone().requires_grad_(requires_grad)
        with torch.autocast("cpu", torch.bfloat16):
            slots = MeanPoolProjection(n, k, num_heads=1)(Tokens(given, given, True, ForwardPass.of(given)), k)
        assert slots.sizes.tolist() == [[257] * 4]
        torch.testing.assert_close(slots.key, expected, rtol=0, atol=1e-3)  # products round tokens to bfloat16


def test_interpolated_matrices_by_hand():
    """Columns by the overlap of old and new positions."""
    projection = LinearProjection(3, 1, num_heads=1, sharing="key_value")
    projection.key_projection.data.copy_(torch.tensor([[6.0, 3.0, 9.0]]))
    for length, expected in ((2, [7.5, 10.5]), (3, [5.0, 6.0, 7.0]), (6, [2.5, 2.5, 3.0, 3.0, 3.5, 3.5])):
        projection.resize(length, "interpolate")
        torch.testing.assert_close(projection.key_projection.detach(), torch.tensor([expected]))
