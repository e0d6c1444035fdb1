"""The equations against hand-computed values and numpy."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from linformer_kit import InputError
from linformer_kit.operator import functional
from linformer_kit.operator.functional import AttentionWeights


def test_pooling_matrix_by_hand():
    expected = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.5**0.5, 0.5**0.5, 0, 0], [0, 0, 0, 0.5**0.5, 0.5**0.5]])
    assert torch.equal(functional.pooling_matrix(3, 5), expected)


@pytest.mark.parametrize(("projected_dim", "seq_len"), [(1, 1), (1, 13), (7, 7), (7, 31), (97, 211)])
def test_pooling_windows_tile_the_sequence(projected_dim, seq_len):
    windows = functional.pooling_matrix(projected_dim, seq_len) > 0
    assert torch.equal(windows.sum(dim=0), torch.ones(seq_len, dtype=torch.long))
    sizes = windows.sum(dim=1)
    assert sizes.max() - sizes.min() <= 1
    # Rows of length 1: independent inputs of variance 1 give slots of variance 1, whatever n is.
    norms = functional.pooling_matrix(projected_dim, seq_len).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(projected_dim))


def test_split_and_merge_heads_are_inverse():
    hidden = torch.randn(2, 5, 21)
    heads = functional.split_heads(hidden, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert torch.equal(heads[:, 1], hidden[..., 7:14])
    assert torch.equal(functional.merge_heads(heads), hidden)


def test_context_mapping_by_hand():
    query = torch.tensor([[[[math.log(3.0), 0.0]]]]) * math.sqrt(2)
    key = torch.tensor([[[[1.0, 5.0], [0.0, 7.0]]]])
    torch.testing.assert_close(functional.context_mapping(query, key), torch.tensor([[[[0.75, 0.25]]]]))


def test_context_mapping_ignores_padded_keys():
    query, key = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7)
    padding = torch.zeros(2, 11, dtype=torch.bool)
    padding[1, 4:] = True
    weights = functional.context_mapping(query, key, padding)
    assert (weights[1, ..., 4:] == 0).all()
    torch.testing.assert_close(weights[1, ..., :4], functional.context_mapping(query, key[:, :, :4])[1])


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_over_nothing_but_padding_is_finite(need_weights):
    query, key, value = (torch.randn(1, 3, 5, 7, requires_grad=True) for _ in range(3))
    padding = torch.ones(1, 5, dtype=torch.bool)
    out, _ = functional.scaled_dot_product_attention(query, key, value, padding, need_weights=need_weights)
    out.sum().backward()
    assert out.isfinite().all()
    assert query.grad.isfinite().all() and key.grad.isfinite().all() and value.grad.isfinite().all()


def _numpy_softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _weights(embed: int) -> AttentionWeights:
    matrices = [torch.randn(embed, embed, dtype=torch.float64) for _ in range(4)]
    return AttentionWeights(*matrices, *[torch.randn(embed, dtype=torch.float64) for _ in range(4)])


def test_references_against_numpy():
    """The references themselves, once more and by other means: equations 2 and 7 for one head."""
    embed, length, slots = 5, 7, 3
    weights = _weights(embed)
    x = torch.randn(1, length, embed, dtype=torch.float64)
    e, f = torch.randn(2, 1, slots, length, dtype=torch.float64)
    w = [None if value is None else value.numpy() for value in weights]
    q, k, v = (x[0].numpy() @ w[i].T + w[4 + i] for i in range(3))
    full = _numpy_softmax(q @ k.T / math.sqrt(embed)) @ v @ w[3].T + w[7]
    np.testing.assert_allclose(functional.full_attention_reference(x, x, x, weights, 1)[0], full, rtol=1e-12)
    maps = [[functional.matrix_projection_reference(matrix[0])] for matrix in (e, f)]
    linear = _numpy_softmax(q @ (e[0].numpy() @ k).T / math.sqrt(embed)) @ (f[0].numpy() @ v) @ w[3].T + w[7]
    np.testing.assert_allclose(functional.linformer_attention_reference(x, x, x, weights, *maps)[0], linear, rtol=1e-12)


def test_linformer_with_identity_projections_is_full_attention():
    weights = _weights(15)
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    identity = [functional.matrix_projection_reference(torch.eye(7, dtype=torch.float64))] * 3
    linear = functional.linformer_attention_reference(x, x, x, weights, identity, identity)
    torch.testing.assert_close(linear, functional.full_attention_reference(x, x, x, weights, 3), rtol=1e-12, atol=1e-12)


def test_spread_order_by_hand():
    assert functional.spread_order(1) == [0]
    assert functional.spread_order(5) == [0, 4, 2, 1, 3]
    assert functional.spread_order(8) == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.parametrize("count", [2, 7, 64, 97, 128])
def test_every_beginning_of_the_order_is_spread(count):
    """No stretch without any of the first j is longer than four times what j evenly spread ones would leave."""
    order = functional.spread_order(count)
    assert sorted(order) == list(range(count))
    for j in range(1, count + 1):
        edges = [-1, *sorted(order[:j]), count]
        assert max(b - a for a, b in itertools.pairwise(edges)) <= max(4 * count / j, 2)


def test_stretch_matrix_by_hand():
    matrix = torch.tensor([[1.0, 2, 3, 4]])
    torch.testing.assert_close(functional.stretch_matrix(matrix, 2), torch.tensor([[3.0, 7]]))
    torch.testing.assert_close(functional.stretch_matrix(matrix, 3), torch.tensor([[1 + 2 / 3, 4 / 3 + 2, 1 + 4.0]]))
    torch.testing.assert_close(functional.stretch_matrix(matrix, 8), torch.tensor([[0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2]]))


@pytest.mark.parametrize("lengths", [[1, 5, 16, 17], [17], [0, 3]])
def test_stretching_to_each_length(lengths):
    """Every position cut into m parts, every n of which are a column."""
    matrix = torch.randn(2, 3, 17, dtype=torch.float64)
    stretched = functional.stretch_to_lengths(matrix, torch.tensor(lengths), 19)
    assert stretched.shape == (len(lengths), 2, 3, 19)
    for found, length in zip(stretched, [max(1, length) for length in lengths], strict=True):
        parts = matrix.repeat_interleave(length, dim=-1) / length
        expected = parts.unflatten(-1, (length, 17)).sum(dim=-1)
        torch.testing.assert_close(found[..., :length], expected, rtol=1e-12, atol=1e-12)
        assert not found[..., length:].any()
        torch.testing.assert_close(functional.stretch_matrix(matrix, length), expected, rtol=1e-12, atol=1e-12)


def test_stretch_tokens_by_hand():
    hidden = torch.tensor([[3.0], [6.0], [12.0], [0.0]]).expand(3, -1, -1)
    stretched = functional.stretch_tokens(hidden, torch.tensor([1, 2, 3]), 4)[..., 0]
    torch.testing.assert_close(stretched, torch.tensor([[3.0, 3, 3, 3], [3, 3, 6, 6], [3, 5, 8, 12]]))


@pytest.mark.parametrize("length", [1, 5, 16, 17])
def test_stretching_the_tokens_is_stretching_the_matrix(length):
    matrix, hidden = torch.randn(3, 17, dtype=torch.float64), torch.randn(1, 17, 5, dtype=torch.float64)
    stretched = functional.stretch_tokens(hidden, torch.tensor([length]), 17)
    expected = functional.stretch_matrix(matrix, length) @ hidden[:, :length]
    torch.testing.assert_close(matrix @ stretched, expected, rtol=1e-10, atol=1e-10)
    if length == 17:
        assert torch.equal(stretched, hidden)


def test_pooling_windows_by_hand():
    windows = functional.pooling_windows(3, 7, 5, torch.tensor([5, 1]))
    assert windows.positions.shape == (2, 3, 3)
    held = [[row[real].tolist() for row, real in zip(*sample, strict=True)] for sample in zip(*windows, strict=True)]
    assert held == [[[0, 1], [2, 3], [4]], [[0], [], []]]
    assert windows.empty.tolist() == [[False, False, False], [False, True, True]]
    stretched = functional.pooling_windows(3, 7, 5, torch.tensor([5, 2]), stretch=True)
    held = [[row[real].tolist() for row, real in zip(*sample, strict=True)] for sample in zip(*stretched, strict=True)]
    assert held == [[[0], [1, 2], [3, 4]], [[0], [1], []]]


@pytest.mark.parametrize("padded", [False, True])
def test_svd_attention_is_the_best_of_its_rank(padded):
    """Its distance from P is the norm of the singular values left out, by Eckart and Young; at full rank it is P."""
    query, key, value = torch.randn(3, 2, 3, 11, 7, dtype=torch.float64)
    padding = torch.zeros(2, 11, dtype=torch.bool)
    padding[1, 8:] = padded
    masks = {"key_padding_mask": padding, "query_padding_mask": padding} if padded else {}
    mapping = functional.context_mapping(query, key, padding).masked_fill(padding[:, None, :, None], 0.0)
    sigma = torch.linalg.svdvals(mapping)
    for rank in (1, 4, 8, 11):
        out, low_rank = functional.svd_attention(query, key, value, rank, **masks)
        assert (torch.linalg.matrix_rank(low_rank) <= rank).all()
        distance = torch.linalg.matrix_norm(mapping - low_rank)
        torch.testing.assert_close(distance, sigma[..., rank:].norm(dim=-1), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(out, low_rank @ value)
    torch.testing.assert_close(out, mapping @ value)
    if padded:
        alone = functional.svd_attention(*(x[1:, :, :8] for x in (query, key, value)), 4)[0]
        together = functional.svd_attention(
            query, key, value.masked_fill(padding[:, None, :, None], torch.nan), 4, **masks
        )
        torch.testing.assert_close(together[0][1:, :, :8], alone)


@pytest.mark.parametrize("rank", [0, 6, 2.0])
def test_svd_attention_refuses_other_ranks(rank):
    query, key = torch.randn(1, 1, 5, 3), torch.randn(1, 1, 11, 3)
    with pytest.raises(InputError, match=re.escape(f"rank: expected 1 to 5 (the smaller side of P), got {rank}")):
        functional.svd_attention(query, key, key, rank)
