"""Singular values against numpy's and by hand, and the error of randomised ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit.experiments.spectrum.singular_values import cumulative_curves, leading_curves, singular_values


def mappings(many: int, rows: int, columns: int, scale: float = 2.0) -> torch.Tensor:
    return (scale * torch.randn(many, rows, columns)).softmax(dim=-1)


def by_numpy(matrices: torch.Tensor) -> np.ndarray:
    sums = np.linalg.svd(matrices.double().numpy(), compute_uv=False).cumsum(axis=-1)
    return sums / sums[..., -1:]


def limits(many: int, rank: int) -> torch.Tensor:
    return torch.full((many,), rank)


@pytest.mark.parametrize("shape", [(5, 23, 23), (3, 29, 7), (3, 7, 29)])
def test_they_are_those_of_numpy(shape):
    matrices = mappings(*shape)
    expected = np.linalg.svd(matrices.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(singular_values(matrices).numpy(), expected, atol=1e-7)
    curves = cumulative_curves(matrices, limits(shape[0], min(shape[1:])))
    np.testing.assert_allclose(curves.numpy(), by_numpy(matrices), atol=1e-6)


def test_threads_change_nothing_and_are_given_back():
    matrices = mappings(5, 23, 23)
    alone = singular_values(matrices)
    torch.set_num_threads(2)
    try:
        torch.testing.assert_close(singular_values(matrices), alone, rtol=0, atol=1e-9)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_uniform_attention_has_rank_one():
    curves = cumulative_curves(torch.full((1, 17, 17), 1 / 17), limits(1, 17))
    torch.testing.assert_close(curves, torch.ones(1, 17, dtype=torch.float64), atol=1e-6, rtol=0)


def test_attention_to_oneself_has_a_flat_spectrum():
    curves = cumulative_curves(torch.eye(17)[None], limits(1, 17))
    torch.testing.assert_close(curves[0], torch.arange(1, 18, dtype=torch.float64) / 17)


def test_two_blocks_by_hand():
    """Uniform attention within blocks of 4 and 9 tokens: two singular values of 1."""
    matrix = torch.block_diag(torch.full((4, 4), 1 / 4), torch.full((9, 9), 1 / 9))
    curves = cumulative_curves(matrix[None], limits(1, 13))[0]
    torch.testing.assert_close(curves[:3], torch.tensor([0.5, 1, 1], dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_zero_matrix_is_no_division_by_zero():
    assert cumulative_curves(torch.zeros(1, 5, 5), limits(1, 0)).tolist() == [[1.0] * 5]


@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
def test_leading_values_are_within_their_stated_error(scale):
    matrices = mappings(3, 97, 97, scale)
    exact = by_numpy(matrices)[:, :11]
    curves, error = leading_curves(matrices, limits(3, 97), 11)
    off = np.abs(curves.numpy() - exact).max(axis=1)
    assert curves.shape == (3, 11) and (off <= error.numpy() + 1e-3).all()
    assert (error > 1e-3).all() and (error < 0.2).all()
    again, _ = leading_curves(matrices, limits(3, 97), 11)
    assert torch.equal(again, curves)


def test_leading_values_are_exact_where_nothing_else_is_there():
    low_rank = torch.rand(2, 97, 5).softmax(-1) @ torch.rand(2, 5, 97).softmax(-1)
    curves, error = leading_curves(low_rank, limits(2, 97), 7)
    np.testing.assert_allclose(curves.numpy(), by_numpy(low_rank)[:, :7], atol=1e-3)
    assert (error < 2e-3).all()


def test_many_leading_values_of_few_are_all_of_them():
    matrices = mappings(2, 23, 23)
    curves, error = leading_curves(matrices, limits(2, 23), 13)
    assert not error.any() and torch.equal(curves, cumulative_curves(matrices, limits(2, 23))[:, :13])


def test_the_random_numbers_of_others_stay_theirs():
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    leading_curves(mappings(1, 97, 97).detach(), limits(1, 97), 5)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    leading_curves(torch.eye(97)[None], limits(1, 97), 5)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(torch.rand(()), expected)


@pytest.mark.parametrize("limit", [97, 60])
def test_the_stated_error_is_half_of_what_lies_between_the_bounds(limit):
    values = np.concatenate([np.linspace(3, 1, 10), np.full(20, 0.2), np.linspace(0.1, 0.01, 67)])
    curves, error = leading_curves(torch.from_numpy(values).diag()[None], limits(1, limit), 7)
    found, rest = values[:23].sum(), (values[23:] ** 2).sum()
    low, high = (values[:7].cumsum() / (found + tail) for tail in (np.sqrt((limit - 23) * rest), rest / values[22]))
    np.testing.assert_allclose(curves[0].numpy(), (low + high) / 2, rtol=1e-3)
    np.testing.assert_allclose(error[0].item(), (high - low).max() / 2, rtol=1e-2)


def test_leading_values_beyond_the_rank_are_all_of_them():
    curves, _ = leading_curves(mappings(1, 97, 97), limits(1, 5), 11)
    assert (curves[0, 5:] == 1).all() and (curves[0, :5] < 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_weights_have_the_spectrum_that_they_have(dtype):
    matrices = mappings(3, 97, 97).to(dtype)
    curves, error = leading_curves(matrices, limits(3, 97), 11)
    exact, stated = leading_curves(matrices.double(), limits(3, 97), 11)
    assert torch.equal(curves, exact) and torch.equal(error, stated) and (error > 1e-3).all()
    np.testing.assert_allclose(cumulative_curves(matrices, limits(3, 97)), by_numpy(matrices), atol=1e-6)
