"""Resampling against hand-computed values and a finer grid."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.operator.projections.resampling import stretch_matrix, stretch_to_lengths, stretch_tokens


def test_stretch_matrix_by_hand():
    matrix = torch.tensor([[1.0, 2, 3, 4]])
    torch.testing.assert_close(stretch_matrix(matrix, 2), torch.tensor([[3.0, 7]]))
    torch.testing.assert_close(stretch_matrix(matrix, 3), torch.tensor([[1 + 2 / 3, 4 / 3 + 2, 1 + 4.0]]))
    torch.testing.assert_close(stretch_matrix(matrix, 8), torch.tensor([[0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2]]))


@pytest.mark.parametrize("lengths", [[1, 5, 16, 17], [17], [0, 3]])
def test_stretching_to_each_length(lengths):
    """Every position cut into m parts, every n of which are a column."""
    matrix = torch.randn(2, 3, 17, dtype=torch.float64)
    stretched = stretch_to_lengths(matrix, torch.tensor(lengths), 19)
    assert stretched.shape == (len(lengths), 2, 3, 19)
    for found, length in zip(stretched, [max(1, length) for length in lengths], strict=True):
        parts = matrix.repeat_interleave(length, dim=-1) / length
        expected = parts.unflatten(-1, (length, 17)).sum(dim=-1)
        torch.testing.assert_close(found[..., :length], expected, rtol=1e-12, atol=1e-12)
        assert not found[..., length:].any()
        torch.testing.assert_close(stretch_matrix(matrix, length), expected, rtol=1e-12, atol=1e-12)


def test_stretch_tokens_by_hand():
    hidden = torch.tensor([[3.0], [6.0], [12.0], [0.0]]).expand(3, -1, -1)
    stretched = stretch_tokens(hidden, torch.tensor([1, 2, 3]), 4)[..., 0]
    torch.testing.assert_close(stretched, torch.tensor([[3.0, 3, 3, 3], [3, 3, 6, 6], [3, 5, 8, 12]]))


@pytest.mark.parametrize("length", [1, 5, 16, 17])
def test_stretching_the_tokens_is_stretching_the_matrix(length):
    matrix, hidden = torch.randn(3, 17, dtype=torch.float64), torch.randn(1, 17, 5, dtype=torch.float64)
    stretched = stretch_tokens(hidden, torch.tensor([length]), 17)
    expected = stretch_matrix(matrix, length) @ hidden[:, :length]
    torch.testing.assert_close(matrix @ stretched, expected, rtol=1e-10, atol=1e-10)
    if length == 17:
        assert torch.equal(stretched, hidden)
