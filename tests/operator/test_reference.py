"""The equations against hand-computed values and numpy."""

from __future__ import annotations

import math

import numpy as np
import torch

from linformer_kit.operator import reference
from linformer_kit.operator.reference import AttentionWeights
from tests.reference.attention import of_matrix


def _numpy_softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _weights(embed: int) -> AttentionWeights:
    matrices = [torch.randn(embed, embed, dtype=torch.float64) for _ in range(4)]
    return AttentionWeights(*matrices, *[torch.randn(embed, dtype=torch.float64) for _ in range(4)])


def test_references_against_numpy():
    """The equation itself, once more and by other means: equations 2 and 7 for one head."""
    embed, length, slots = 5, 7, 3
    weights = _weights(embed)
    x = torch.randn(length, embed, dtype=torch.float64)
    e, f = torch.randn(2, slots, length, dtype=torch.float64)
    w = [None if value is None else value.numpy() for value in weights]
    q, k, v = (x.numpy() @ w[i].T + w[4 + i] for i in range(3))
    full = _numpy_softmax(q @ k.T / math.sqrt(embed)) @ v @ w[3].T + w[7]
    identity = [lambda rows: rows]
    np.testing.assert_allclose(reference.equation_7(x, x, x, weights, identity, identity), full, rtol=1e-12)
    maps = [[of_matrix(matrix)] for matrix in (e, f)]
    linear = _numpy_softmax(q @ (e.numpy() @ k).T / math.sqrt(embed)) @ (f.numpy() @ v) @ w[3].T + w[7]
    np.testing.assert_allclose(reference.equation_7(x, x, x, weights, *maps), linear, rtol=1e-12)


def test_the_reference_of_batches_is_the_equation_for_each_sequence():
    weights, heads = _weights(15), 3
    query, key, value = torch.randn(3, 2, 7, 15, dtype=torch.float64)
    maps = [[of_matrix(matrix) for matrix in each] for each in torch.randn(2, heads, 4, 7).double()]
    of_all = reference.linformer_attention_reference(query, key, value, weights, *maps)
    of_each = [reference.equation_7(*inputs, weights, *maps) for inputs in zip(query, key, value, strict=True)]
    torch.testing.assert_close(of_all, torch.stack(of_each), rtol=1e-12, atol=1e-12)
    padded = torch.arange(7) >= torch.tensor([[5], [7]])
    of_all = reference.linformer_attention_reference(query, key, value, weights, *maps, padded)
    of_first = reference.equation_7(query[0], key[0, :5], value[0, :5], weights, *maps)
    torch.testing.assert_close(of_all, torch.stack([of_first, of_each[1]]), rtol=1e-12, atol=1e-12)
