"""Minimum cost of one encoder layer: floating-point operations, and bytes to and from main memory.

Only matrix products are counted, with two operations for a multiplication and its addition. Letters of the formulas:
n `seq_len`, k `projected_dim`, d `hidden_size`, f `intermediate_size`, b `batch`.
"""

from __future__ import annotations

from typing import NamedTuple

TRAINING = 3  # the backward pass has two products of the same size for each product of the forward pass


class Cost(NamedTuple):
    """Operations and bytes of one layer for a batch."""

    flop: int
    bytes: int


def layer_cost(
    seq_len: int,
    projected_dim: int | None,
    *,
    batch: int,
    hidden_size: int,
    intermediate_size: int,
    itemsize: int,
    train: bool = False,
) -> Cost:
    """Cost of one layer.

    Linformer with layerwise sharing, multiplied in the cheap order:

        b · 2 · (n·d² for Q + n·d² for the output + k·n·d for E·X, once since E = F + 2·k·d² for W_K and W_V on k rows
                 + n·k·d for the scores + n·k·d for the context + 2·n·d·f for the feed-forward layer)

    Full attention:

        b · 2 · (4·n·d² for Q, K, V and the output + 2·n²·d for scores and context + 2·n·d·f)

    Bytes, if everything possible is kept in cache or recomputed there: weights once, and the n rows of activations that
    must pass through memory. A Linformer layer reads its input twice, since E·X must be complete before the first row
    of the output, and writes its output once: weights + E + 3·b·n·d numbers. With full attention it reads the input,
    writes K and V, then reads all three and writes the output: weights + 7·b·n·d numbers.

    Args:
        seq_len: n.
        projected_dim: k, or None for full attention.
        batch: Number of sequences.
        hidden_size: d.
        intermediate_size: f.
        itemsize: Bytes per number.
        train: Forward and backward: both figures times `TRAINING`.
    """
    n, k, d, f = seq_len, projected_dim, hidden_size, intermediate_size
    weights = 4 * d * d + 2 * d * f
    if k is None:
        products = 4 * n * d * d + 2 * n * n * d + 2 * n * d * f
        numbers = weights + 7 * batch * n * d
    else:
        products = 2 * n * d * d + k * n * d + 2 * k * d * d + 2 * n * k * d + 2 * n * d * f
        numbers = weights + k * n + 3 * batch * n * d
    passes = TRAINING if train else 1
    return Cost(flop=passes * batch * 2 * products, bytes=passes * itemsize * numbers)


class Bound(NamedTuple):
    """Minimum time for a cost at a machine's best rates, and the limiting rate."""

    seconds: float
    by: str  # "compute" or "memory"


def bound(cost: Cost, *, flop_per_second: float, bytes_per_second: float) -> Bound:
    """The larger of operations over the best product rate and bytes over the copy bandwidth."""
    compute, memory = cost.flop / flop_per_second, cost.bytes / bytes_per_second
    return Bound(compute, "compute") if compute >= memory else Bound(memory, "memory")
