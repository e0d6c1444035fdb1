"""The n → k maps: counts, shapes, starts and rejections."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch
from torch import Tensor

from linformer_cli.settings import Projection
from linformer_kit import InputError, MeanPoolProjection, RandomProjection
from linformer_kit.operator.kernels import Kernels, choose
from linformer_kit.operator.projections import PROJECTIONS, Tokens
from linformer_kit.operator.projections.sizes import stretch_matrix
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


@pytest.mark.parametrize("lengths", [None, [37, 4, 0]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
def test_means_are_those_of_sums_in_one_pass_and_by_products(dtype, tolerance, lengths, monkeypatch):
    hidden = torch.randn(3, 40, 11).to(dtype)[:, 1:-2]  # the batch is not contiguous
    given = None if lengths is None else torch.tensor(lengths)
    windows = MeanPoolProjection(37, 5, num_heads=1).windows(37, 5, ForwardPass(choose(hidden), given))
    rows = zip(hidden, windows.positions.expand(3, -1, -1), windows.real.expand(3, -1, -1), strict=True)
    expected = [
        torch.stack([text[at[kept]].double().sum(0) / max(1, int(kept.sum())) for at, kept in zip(*row, strict=True)])
        for text, *row in rows
    ]
    in_one_pass = windows.means(hidden)
    monkeypatch.setattr(torch.nn.functional, "embedding_bag", None)  # calling it would fail
    products = windows._replace(kernels=Kernels()).means(hidden)
    for means in (in_one_pass, products):
        assert means.dtype == dtype
        torch.testing.assert_close(means.double(), torch.stack(expected), rtol=tolerance, atol=tolerance)
    with pytest.raises(TypeError):
        windows.means(hidden)


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
        ({"projected_dim": [7, 5]}, "projected_dim: expected one number for each of 3 heads, got 2"),
    ],
)
def test_rejections(arguments, message):
    good = {"name": "linear", "seq_len": 31, "projected_dim": 7, "num_heads": 3, "head_dim": 5}
    name, *given = (good | arguments).items()
    with pytest.raises(InputError, match=re.escape(message)):
        PROJECTIONS[name[1]](**dict(given))


@pytest.mark.parametrize("name", ["conv", "dynamic"])
def test_what_depends_on_the_width_of_heads_says_so(name):
    with pytest.raises(InputError, match=r"^head_dim: expected the width of a head, got None$"):
        PROJECTIONS[name](31, 7, num_heads=3)


def test_the_names_on_the_command_line_are_the_names_in_the_code():
    assert set(get_args(Projection)) == set(PROJECTIONS)


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


def stretched(matrix: Tensor, length: int) -> Tensor:
    """The columns of a matrix over n positions, spread over another number by how much of each falls on which."""
    n = matrix.shape[-1]
    result = matrix.new_zeros(matrix.shape[0], length)
    for new in range(length):
        for old in range(n):
            # Both intervals in units of 1/(n·m), so that the overlap is a whole number of them.
            overlap = min((new + 1) * n, (old + 1) * length) - max(new * n, old * length)
            if overlap > 0:
                result[:, new] += matrix[:, old] * (overlap / length)
    return result


@pytest.mark.parametrize("length", [37, 36, 13, 1, 71, 74])
def test_interpolated_matrices_keep_what_falls_on_each_position(length):
    """Columns by the overlap of old and new positions; gradients too."""
    matrix = torch.randn(2, 5, 37, dtype=torch.float64, requires_grad=True)
    found = stretch_matrix(matrix, length)
    expected = torch.stack([stretched(each, length) for each in matrix])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(expected)
    gradients = [torch.autograd.grad((each * direction).sum(), matrix)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
