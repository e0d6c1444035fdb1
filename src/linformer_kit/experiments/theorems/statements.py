"""Theorems 1 and 2 of the paper as functions: their k, their constructions, their errors.

docs/theory.md explains where the paper's argument holds and where it does not; `linformer theorems` measures it.

Axes: heads (matrices), n (positions), d (head_dim), k (slots).
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from linformer_kit.errors import InputError
from linformer_kit.operator.projections.starts import pooling_matrix


def theorem1_dim(n: int, epsilon: float) -> int:
    """k of Theorem 1, ⌈5·ln n / (ε² - ε³)⌉.

    Args:
        n: Tokens, 2 or more.
        epsilon: ε, the relative error, between 0 and 1.

    Raises:
        InputError: if either is out of range.

    Source: Wang et al. 2020, Theorem 1 and its proof in the appendix.
    """
    _check("n", n)
    return math.ceil(5 * math.log(n) / _exponent(epsilon))


def theorem2_dim(n: int, d: int, epsilon: float) -> int:
    """k of Theorem 2, ⌈min(9·ln d, 5·ln n) / (ε² - ε³)⌉: the appendix's constants.

    Args:
        n: Tokens, 2 or more.
        d: Width of a head, 2 or more.
        epsilon: ε, between 0 and 1.

    Raises:
        InputError: if any is out of range.

    Source: Wang et al. 2020, Theorem 2 and its proof in the appendix. The theorem itself states 9·d·log d.
    """
    _check("n", n)
    _check("d", d)
    return math.ceil(min(9 * math.log(d), 5 * math.log(n)) / _exponent(epsilon))


def union_bound(events: float, k: int, epsilon: float) -> float:
    """`events`·exp(-(ε² - ε³)·k/4): upper bound of the probability that any of the products has an error above ε.

    Bounds above 1 are vacuous. By Johnson and Lindenstrauss. Theorem 1 counts 2·n events; 4·n is correct for inner
    products (docs/theory.md).
    """
    return events * math.exp(-_exponent(epsilon) * k / 4)


def _exponent(epsilon: float) -> float:
    if not 0 < epsilon < 1 or epsilon**2 - epsilon**3 <= 0:  # the difference can underflow
        raise InputError(f"epsilon: expected more than 0 and less than 1, got {epsilon}")
    return epsilon**2 - epsilon**3


def _check(name: str, value: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 2:
        raise InputError(f"{name}: expected 2 or more, got {value!r}")


class Heads(NamedTuple):
    """Attention of some heads.

    Attributes:
        query: Q·W_Q, divided by √d.
        key: K·W_K.
        value: V·W_V.
    """

    query: Float[Tensor, "*texts heads n d"]
    key: Float[Tensor, "*texts heads n d"]
    value: Float[Tensor, "*texts heads n d"]

    def mapping(self) -> Float[Tensor, "*texts heads n n"]:
        """P = softmax(Q·Kᵀ/√d), equation 2."""
        return (self.query @ self.key.mT).softmax(dim=-1)

    def projected(
        self, e: Float[Tensor, "*heads k n"], f: Float[Tensor, "*heads k n"]
    ) -> Float[Tensor, "*texts heads n d"]:
        """softmax(Q·(E·K)ᵀ/√d)·F·V, equation 7."""
        return (self.query @ (e @ self.key).mT).softmax(dim=-1) @ (f @ self.value)


def random_heads(heads: int, n: int, d: int, generator: torch.Generator) -> Heads:
    """Q, K and V of independent standard normal numbers, in float64: scores of variance 1."""
    query, key, value = torch.randn(3, heads, n, d, generator=generator, dtype=torch.float64)
    return Heads(query / math.sqrt(d), key, value)


def gaussian_projection(k: int, n: int, generator: torch.Generator) -> Float[Tensor, "k n"]:
    """R, independent N(0, 1/k): RᵀR is the identity on average. In float64."""
    return torch.randn(k, n, generator=generator, dtype=torch.float64) / math.sqrt(k)


def theorem2_matrices(r: Float[Tensor, "k n"], delta: float) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n"]]:
    """E = δ·R and F = e^(-δ)·R, the construction of Theorem 2; there δ = 1/2ⁿ."""
    return delta * r, math.exp(-delta) * r


def window_means(k: int, n: int) -> Float[Tensor, "k n"]:
    """E = F of mean pooling over the windows of `starts.pooling_matrix`: rows have the sum 1. In float64."""
    windows = pooling_matrix(k, n).double()
    return windows / windows.sum(dim=1, keepdim=True)


class LowRank(NamedTuple):
    """The singular value decomposition of P, to be truncated at any rank: equation 6.

    Truncation gives the nearest matrix of that rank to P. It ignores V, so P_low·V need not be the nearest to P·V.
    """

    left: Float[Tensor, "heads n rank"]
    right: Float[Tensor, "heads rank d"]

    @classmethod
    def of(cls, mapping: Float[Tensor, "heads n n"], value: Float[Tensor, "heads n d"]) -> LowRank:
        """The decomposition of P, with Σ·Vᵀ applied to the values."""
        u, sigma, vh = torch.linalg.svd(mapping, full_matrices=False)
        return cls(u, sigma[..., None] * (vh @ value))

    def cut(self, k: int) -> Float[Tensor, "heads n d"]:
        """P_low·V of rank k."""
        return self.left[..., :k] @ self.right[..., :k, :]


class Theorem1Errors(NamedTuple):
    """|P̃·w - P·w| by three measures, w being a column of V.

    Attributes:
        vector: ‖P̃·w - P·w‖ / ‖P·w‖, what the theorem bounds by ε.
        row: |x̃·w - x·w| / |x·w| for each row x of P, what its proof bounds by ε.
        corrected: |x̃·w - x·w| / (‖x‖·‖w‖), what Johnson-Lindenstrauss bounds by ε.
    """

    vector: Float[Tensor, "heads d"]
    row: Float[Tensor, "heads n d"]
    corrected: Float[Tensor, "heads n d"]


def theorem1_errors(
    mapping: Float[Tensor, "heads n n"],
    value: Float[Tensor, "heads n d"],
    exact: Float[Tensor, "heads n d"],
    approximate: Float[Tensor, "heads n d"],
) -> Theorem1Errors:
    """The errors of P̃·V, `approximate`, against P·V, `exact`; 0 where both are equal, even relative to 0."""
    error = (approximate - exact).abs()
    scale = mapping.norm(dim=-1, keepdim=True) * value.norm(dim=-2, keepdim=True)
    return Theorem1Errors(
        _relative(error.norm(dim=-2), exact.norm(dim=-2)), _relative(error, exact.abs()), _relative(error, scale)
    )


def theorem1_variance_dim(
    mapping: Float[Tensor, "heads n n"], value: Float[Tensor, "heads n d"], exact: Float[Tensor, "heads n d"]
) -> Float[Tensor, "heads d"]:
    """1 + ‖P‖²·‖w‖²/‖P·w‖² for each column w of V; divided by ε², the k for which the mean square error is ε².

    The variance of x·RᵀR·w is (‖x‖²‖w‖² + (x·w)²)/k for each row x of P; this is its sum over rows, relative to ‖P·w‖².
    """
    size = mapping.square().sum(dim=(-2, -1))[..., None]
    return 1 + size * value.square().sum(dim=-2) / exact.square().sum(dim=-2)


def _relative(error: Tensor, scale: Tensor) -> Tensor:
    return torch.where(error == 0, 0.0, error / scale)


class Theorem2Errors(NamedTuple):
    """‖õ - o‖ for the output o of each query, by two measures.

    Attributes:
        stated: Over ‖softmax(w)‖·‖V‖, the Frobenius norm of V, what the theorem bounds by ε; w is the row of scores.
        relative: Over ‖o‖.
    """

    stated: Float[Tensor, "*heads n"]
    relative: Float[Tensor, "*heads n"]


def theorem2_errors(
    mapping: Float[Tensor, "*heads n n"],
    value: Float[Tensor, "*heads n d"],
    exact: Float[Tensor, "*heads n d"],
    approximate: Float[Tensor, "*heads n d"],
) -> Theorem2Errors:
    """The errors of softmax(w·Eᵀ)·F·V, `approximate`, against softmax(w)·V, `exact`."""
    error = (approximate - exact).norm(dim=-1)
    scale = mapping.norm(dim=-1) * value.norm(dim=(-2, -1))[..., None]
    return Theorem2Errors(_relative(error, scale), _relative(error, exact.norm(dim=-1)))
