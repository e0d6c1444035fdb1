"""The equations against hand-computed values and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linformer_kit import functional
from linformer_kit.functional import AttentionWeights


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
