"""Each projection once more, plain and slow: one sequence, one head, one slot after the other.

`plain_projections` turns a projection module into the functions that `functional.linformer_attention_reference` takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from linformer_kit import projection as fast
from linformer_kit.functional import PlainProjection


def windows(projected_dim: int, max_seq_len: int, length: int, stretch: bool) -> list[range]:
    """The real positions of each window that has any."""
    if stretch:
        count = min(projected_dim, length)
        return [range(i * length // count, (i + 1) * length // count) for i in range(count)]
    edges = [i * max_seq_len // projected_dim for i in range(projected_dim + 1)]
    cut = [range(edges[i], min(edges[i + 1], length)) for i in range(projected_dim)]
    return [window for window in cut if len(window)]


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


def plain_projections(
    projection: fast.SequenceProjection, dims: list[int] | None = None
) -> tuple[list[PlainProjection], list[PlainProjection]]:
    """The maps of keys and values of each head; `dims` is the number of slots of each head where it is smaller."""
    dims = list(projection.head_dims) if dims is None else dims
    keys = [_plain(projection, "key_projection", head, k) for head, k in enumerate(dims)]
    values = [_plain(projection, "value_projection", head, k) for head, k in enumerate(dims)]
    return keys, values


def _plain(projection: fast.SequenceProjection, name: str, head: int, k: int) -> PlainProjection:
    stretch = projection.shorter_input == "stretch"
    n = projection.seq_len

    def pool(reduce):
        return lambda rows: torch.stack([reduce(rows[list(w)]) for w in windows(k, n, len(rows), stretch)])

    if isinstance(projection, fast.MeanPoolProjection):
        return pool(lambda rows: rows.mean(dim=0))
    if isinstance(projection, fast.MaxPoolProjection):
        return pool(lambda rows: rows.max(dim=0).values)
    if isinstance(projection, fast.RandomProjection):
        matrix = projection.matrix[:k] * math.sqrt(projection.projected_dim / k)
        return lambda rows: matrix[:, : len(rows)] @ rows
    weight = getattr(projection, name)
    weight = projection.key_projection if weight is None else weight
    if isinstance(projection, fast.ConvProjection):
        kernel = weight[head] if projection.sharing == "none" else weight
        if isinstance(projection, fast.DenseConvProjection):
            return pool(lambda rows: sum(kernel[:, :, tap] @ row for tap, row in enumerate(rows)))
        return pool(lambda rows: sum(kernel[:, tap] * row for tap, row in enumerate(rows)))
    if projection.sharing != "none":
        matrix = weight[:k]
    elif weight.dim() == 3:
        matrix = weight[head, :k]
    else:
        first = sum(projection.head_dims[:head])
        matrix = weight[first : first + k]
    if stretch:
        return lambda rows: stretched(matrix, len(rows)) @ rows
    return lambda rows: matrix[:, : len(rows)] @ rows
