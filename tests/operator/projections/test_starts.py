"""How E and F start: the matrices themselves, and that no start depends on n in scale."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerConfig
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.projections import LinearProjection
from linformer_kit.operator.projections.matrices import STARTS, pooling_matrix, spread_order
from linformer_kit.operator.projections.windows import MeanPoolProjection
from linformer_kit.operator.slots import ForwardPass

N, K, HEADS = 131, 17, 3


def test_shifted_pooling_is_the_default_and_its_rows_are_spread():
    expected = pooling_matrix(K, N)[spread_order(K)]
    projection = LinearProjection(N, K, num_heads=HEADS, sharing="headwise")
    assert torch.equal(projection.key_projection, expected)
    assert torch.equal(projection.value_projection, projection.key_projection)
    assert LinformerConfig().projection_initializer == projection.initializer == "shifted_pooling"
    by_head = LinearProjection(N, K, num_heads=HEADS, sharing="none")
    assert torch.equal(by_head.key_projection, STARTS["shifted_pooling"](HEADS, K, N))
    assert torch.equal(by_head.key_projection[0], expected) and not torch.equal(by_head.key_projection[1], expected)


def test_what_is_random_has_its_variance():
    matrices = STARTS["normal"](HEADS, K, N)
    assert matrices.shape == (HEADS, K, N)
    assert matrices.std().item() == pytest.approx(0.02, rel=0.05) and abs(matrices.mean()) < 0.002


def test_windows_of_heads_are_shifted():
    """12 positions, 2 windows of 6, 3 heads: each begins 2 positions after the one before, round the end."""
    matrices = STARTS["shifted_pooling"](3, 2, 12)
    inside = [[row.nonzero().flatten().tolist() for row in matrix] for matrix in matrices]
    assert inside[0] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert inside[1] == [[2, 3, 4, 5, 6, 7], [0, 1, 8, 9, 10, 11]]
    assert inside[2] == [[4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 10, 11]]
    assert torch.allclose(matrices.square().sum(-1), torch.ones(3, 2))


def test_pooling_matrix_by_hand():
    expected = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.5**0.5, 0.5**0.5, 0, 0], [0, 0, 0, 0.5**0.5, 0.5**0.5]])
    assert torch.equal(pooling_matrix(3, 5), expected)


def test_spread_order_by_hand():
    assert spread_order(1) == [0]
    assert spread_order(5) == [0, 4, 2, 1, 3]
    assert spread_order(8) == [0, 4, 2, 6, 1, 5, 3, 7]


def test_stretched_windows_are_as_wide_as_the_text_needs():
    """Not as the longest text needs: a text of 9 tokens costs a model of n 4,096 what it costs one of n 9."""
    projection = MeanPoolProjection(4096, 4, num_heads=1, shorter_input="stretch")
    for seq_len, lengths, expected in (
        (9, None, (1, 4, 3)),
        (9, torch.tensor([3, 9]), (2, 4, 3)),
        (0, None, (1, 0, 1)),
    ):
        assert projection.windows(seq_len, 4, ForwardPass(Kernels(), lengths)).positions.shape == expected
