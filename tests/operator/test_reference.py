"""The equations against hand-computed values and numpy."""

from __future__ import annotations

import math

import numpy as np
import torch

from linformer_kit.operator import reference
from linformer_kit.operator.reference import AttentionWeights


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
    np.testing.assert_allclose(reference.full_attention_reference(x, x, x, weights, 1)[0], full, rtol=1e-12)
    maps = [[reference.matrix_projection_reference(matrix[0])] for matrix in (e, f)]
    linear = _numpy_softmax(q @ (e[0].numpy() @ k).T / math.sqrt(embed)) @ (f[0].numpy() @ v) @ w[3].T + w[7]
    np.testing.assert_allclose(reference.linformer_attention_reference(x, x, x, weights, *maps)[0], linear, rtol=1e-12)


def test_linformer_with_identity_projections_is_full_attention():
    weights = _weights(15)
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    identity = [reference.matrix_projection_reference(torch.eye(7, dtype=torch.float64))] * 3
    linear = reference.linformer_attention_reference(x, x, x, weights, identity, identity)
    torch.testing.assert_close(linear, reference.full_attention_reference(x, x, x, weights, 3), rtol=1e-12, atol=1e-12)
