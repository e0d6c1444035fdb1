"""Initialisation of learned E and F (`projection_initializer`). docs/learning.md compares the initialisers.

All of them give rows of norm about 1 for any n and k, so that independent inputs of variance 1 give slots of variance
1. Exceptions are `normal`, whose row norms grow with n, and `mean_pooling`, whose rows sum to 1. Axes: heads (1 if
they share a matrix), slots (k), seq_len (n).

    pooling          mean pooling over k windows times √(n/k), the same for all heads
    mean_pooling     the means without scaling: for layers whose other weights were trained on tokens (`linearized`)
    shifted_pooling  the default: the windows of each head start a little later than those of the previous head; equal
                     to pooling if heads share a matrix
    normal           N(0, 0.02²), as in the official code

To add one, add a function here, a line in `STARTS`, and a name in `settings.ProjectionInitializer`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Matrices = Float[Tensor, "heads slots seq_len"]

_OFFICIAL_STD = 0.02


def pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    """`pooling_matrix` with rows in `spread_order`, so that the first rows are spread evenly over the sequence."""
    return pooling_matrix(projected_dim, seq_len)[spread_order(projected_dim)].repeat(heads, 1, 1)


def mean_pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    matrices = pooling(heads, projected_dim, seq_len)
    return matrices / matrices.sum(dim=-1, keepdim=True)


def shifted_pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    """The windows of head i are shifted by i/h of a window; the last one wraps around the end."""
    matrices = pooling(heads, projected_dim, seq_len)
    shifted = [matrix.roll(head * seq_len // (projected_dim * heads), dims=1) for head, matrix in enumerate(matrices)]
    return torch.stack(shifted)


def normal(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    return torch.randn(heads, projected_dim, seq_len) * _OFFICIAL_STD


STARTS: dict[str, Callable[[int, int, int], Tensor]] = {
    "pooling": pooling,
    "mean_pooling": mean_pooling,
    "shifted_pooling": shifted_pooling,
    "normal": normal,
}


def pooling_matrix(projected_dim: int, seq_len: int) -> Float[Tensor, "projected seq_len"]:
    """Mean pooling over windows that tile the sequence, scaled to keep the variance.

    Window i has positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋, so any k ≤ n gives exactly k windows, whose sizes differ by at
    most one. Each of the w positions in a window has weight 1/√w, which is the mean times √w: independent inputs of
    variance 1 give slots of variance 1 for any n.
    """
    edges = [slot * seq_len // projected_dim for slot in range(projected_dim + 1)]
    matrix = torch.zeros(projected_dim, seq_len)
    for slot, (start, end) in enumerate(itertools.pairwise(edges)):
        matrix[slot, start:end] = 1 / math.sqrt(end - start)
    return matrix


def spread_order(count: int) -> list[int]:
    """0 … count-1 in bit-reversed order, so that every prefix is spread evenly.

    Example:
        >>> spread_order(8)
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    order = [0]
    while len(order) < count:
        order = [2 * index for index in order] + [2 * index + 1 for index in order]
    return [index for index in order if index < count]
