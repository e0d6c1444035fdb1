"""Singular values of context mappings, all of them or the leading ones, as the curves of Figure 1.

Axes: many (matrices), rows, columns, rank.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Float, Int
from torch import Tensor

# With half as much oversampling, or with two power iterations, the values of flat spectra are too low.
_LEAST_OVERSAMPLING, _POWER_ITERATIONS = 16, 4


def singular_values(matrices: Float[Tensor, "many rows columns"]) -> Float[Tensor, "many rank"]:
    """All singular values, the largest first, in float64.

    They are square roots of the eigenvalues of the smaller Gram matrix, which is faster than a decomposition in float32
    and more exact: the error is about 1e-8 of the largest value.
    """
    if matrices.shape[-2] < matrices.shape[-1]:
        matrices = matrices.mT
    if matrices.device.type not in ("cpu", "mps"):
        return _singular_values(matrices).cpu()
    return torch.stack(_side_by_side(_singular_values, list(matrices)))


def _singular_values(matrices: Float[Tensor, "*many rows columns"]) -> Float[Tensor, "*many columns"]:
    exact = _double(matrices)
    return torch.linalg.eigvalsh(exact.mT @ exact).clamp(min=0).sqrt().flip(-1)


def _double(matrices: Tensor) -> Tensor:
    """Convert to float64; moves to the CPU from Apple's GPUs, which lack it."""
    return (matrices.cpu() if matrices.device.type == "mps" else matrices).double()


def _side_by_side(function: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Apply a function to tensors in parallel, one thread each: small decompositions do not profit from more."""
    threads = torch.get_num_threads()
    if threads == 1:
        return list(map(function, tensors))
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, tensors))
    finally:
        torch.set_num_threads(threads)


def cumulative_curves(
    matrices: Float[Tensor, "many rows columns"], limits: Int[Tensor, " many"]
) -> Float[Tensor, "many rank"]:
    """Normalised cumulative singular values.

    Args:
        matrices: Context mappings, zero at padding.
        limits: The largest possible rank of each matrix; beyond it, its curve is 1.
    """
    sums = singular_values(matrices).cumsum(dim=-1)
    return _one_beyond(limits, sums / sums[:, -1:].clamp(min=torch.finfo(sums.dtype).tiny))


def leading_curves(
    matrices: Float[Tensor, "many rows columns"], limits: Int[Tensor, " many"], leading: int
) -> tuple[Float[Tensor, "many leading"], Float[Tensor, " many"]]:
    """The first part of `cumulative_curves` by a randomised decomposition, and its estimated error.

    Twice as many values are computed. The sum of the others is only bounded: with q computed values, σ the smallest
    of them, R² the rest of ‖P‖² and r the rank, it is between R²/σ, since none is above σ, and √((r - q)·R²), by Cauchy
    and Schwarz. The curves use the middle, and half the distance is their estimated error. It is an estimate and not a
    bound, as it assumes that the leading values are exact: in flat spectra their sum is too low, by up to 0.4 % in the
    flattest heads of a real model.

    Args:
        matrices: As in `cumulative_curves`.
        limits: As in `cumulative_curves`.
        leading: Number of singular values.

    Source: Halko, Martinsson and Tropp 2011, algorithm 4.4, by `torch.svd_lowrank`.
    """
    sought = leading + max(leading, _LEAST_OVERSAMPLING)
    if sought >= min(matrices.shape[1:]):
        return cumulative_curves(matrices, limits)[:, :leading], torch.zeros(len(matrices), dtype=torch.float64)
    exact = _double(matrices)
    with torch.random.fork_rng(devices=[matrices.device] if matrices.is_cuda else []):
        torch.manual_seed(0)
        _, values, _ = torch.svd_lowrank(exact, q=sought, niter=_POWER_ITERATIONS)
    values, squares = values.cpu(), exact.square().sum(dim=(1, 2)).cpu()
    rest = (squares - values.square().sum(dim=-1)).clamp(min=0)
    found = values.sum(dim=-1)
    most = found + ((limits - sought).clamp(min=0) * rest).sqrt()
    least = torch.minimum(found + rest / values[:, -1].clamp(min=torch.finfo(values.dtype).tiny), most)
    sums = values[:, :leading].cumsum(dim=-1)
    high, low = (_one_beyond(limits, sums / total[:, None]) for total in (least, most))
    return (high + low) / 2, ((high - low) / 2).amax(dim=1)


def _one_beyond(limits: Int[Tensor, " many"], curves: Float[Tensor, "many rank"]) -> Float[Tensor, "many rank"]:
    """Set the curves to 1 beyond the largest possible rank of each matrix."""
    beyond = torch.arange(curves.shape[1]) >= limits[:, None]
    return curves.clamp(max=1).masked_fill(beyond, 1.0)
