"""The sliding window: which tokens a query sees exactly, and where they are in P̄."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention
from linformer_kit.operator.reference import neighbours_reference
from tests.conftest import randomise

WIDTH, HEADS, N, K = 6, 2, 23, 5
WINDOWS = [1, 2, 3, 64]


def layer(window: int, **arguments: object) -> LinformerAttention:
    return randomise(LinformerAttention(WIDTH, HEADS, N, K, sliding_window=window, **arguments)).double()


def inputs(batch: int = 2, length: int = N) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def test_the_reference_counts_real_tokens():
    """By hand: two before and one after with a window of four; padding neither sees nor is seen."""
    real = torch.tensor([False, True, True, False, True, True, True])
    assert neighbours_reference(real, 4) == [[], [0, 1], [0, 1, 2], [], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4]]
    assert neighbours_reference(real, 1) == [[], [0], [1], [], [2], [3], [4]]


def test_causal_weights_are_of_complete_slots_and_then_of_the_tokens_before():
    """By hand: a first token of its own, windows of 4, 5, 4, 5 and 4 tokens after it, six tokens up to the query."""
    attention = layer(6, projection="mean_pool", global_tokens=1, causal=True)
    x = inputs()
    weights = attention(x, x, x, need_weights=True)[1]
    ends = torch.tensor([1, 1 + 4, 1 + 9, 1 + 13, 1 + 18, N])
    for position in range(N):
        seen = weights[0, 0, position] > 0
        exact = min(position + 1, 6)
        starts = torch.cat([torch.zeros(1), ends[:-1]])
        assert seen[:6].tolist() == ((ends <= position + 1) & (starts < position + 1 - exact)).tolist()
        assert seen[6:].tolist() == [False] * (6 - exact) + [True] * exact


@pytest.mark.parametrize("projected_dim", [K, [5, 3]])
@pytest.mark.parametrize("window", WINDOWS)
def test_weights_are_of_slots_and_then_of_neighbours(window, projected_dim):
    """A column for each of w neighbours, zero where there is none; queries stay where they were."""
    attention = randomise(LinformerAttention(WIDTH, HEADS, N, projected_dim, sliding_window=window)).double()
    x, mask = inputs(), torch.zeros(2, N, dtype=torch.bool)
    mask[0, :4] = mask[1, 3::5] = True
    out, weights = attention(x, x, x, mask, need_weights=True)
    assert weights.shape == (2, HEADS, N, K + window)
    torch.testing.assert_close(out, attention(x, x, x, mask)[0])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, HEADS, N, dtype=torch.float64))
    for sample in range(2):
        near = neighbours_reference(~mask[sample], window)
        ranks = ((~mask[sample]).cumsum(0) - 1).tolist()
        for position in range(N):
            columns = [token - ranks[position] + window // 2 for token in near[position]]
            has_weight = weights[sample, :, position, K:] > 0
            assert all(row.nonzero()[:, 0].tolist() == columns for row in has_weight)
