"""k for each layer: against every possible choice, and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from linformer_kit import InputError, Spectrum, choose_projected_dims
from linformer_kit.analysis.choose import kept_energy


def of(*curves: list[float], heads: int) -> Spectrum:
    """A spectrum by the shares of its singular values."""
    shares = np.array(curves, dtype=float).reshape(-1, heads, len(curves[0]))
    cumulative = shares.cumsum(-1) / shares.sum(-1, keepdims=True)
    return Spectrum(cumulative, np.zeros_like(cumulative), samples=1, tokens=1)


STEEP, FLAT, BETWEEN = [8, 1, 1, 0, 0], [2, 2, 2, 2, 2], [4, 3, 2, 1, 0]
SPECTRUM = of(STEEP, FLAT, BETWEEN, [5, 4, 1, 0, 0], [6, 2, 1, 1, 0], [6, 4, 0, 0, 0], heads=3)


def test_the_least_k_with_the_energy():
    """Means of the heads: 0.467, 0.7, 0.867, 0.933, 1 and 0.567, 0.9, 0.967, 1."""
    assert choose_projected_dims(SPECTRUM, energy=0.5) == [2, 1]
    assert choose_projected_dims(SPECTRUM, energy=0.9) == [4, 2]
    assert choose_projected_dims(SPECTRUM, energy=1.0) == [5, 4]


@pytest.mark.parametrize("budget", [12, 13, 17, 23, 29, 60])
def test_a_budget_leaves_no_layer_lower_than_it_must(budget):
    rng = np.random.default_rng(budget)
    spectrum = of(*np.sort(rng.random((12, 5)) ** 3, axis=1)[:, ::-1].tolist(), heads=3)
    dims = choose_projected_dims(spectrum, budget=budget)
    assert budget - 3 < 3 * sum(dims) <= budget and all(1 <= k <= 5 for k in dims)

    def least(ks: object) -> float:
        return min(spectrum.cumulative[layer, :, k - 1].mean() for layer, k in enumerate(ks))

    best = max(least(ks) for ks in itertools.product(range(1, 6), repeat=4) if 3 * sum(ks) <= budget)
    assert least(dims) == pytest.approx(best, abs=1e-12)


def test_kept_energy_by_hand():
    assert kept_energy(of(STEEP, FLAT, heads=1), [1, 3]) == pytest.approx((0.8 + 0.6) / 2)
    assert kept_energy(of(STEEP, FLAT, heads=2), [2]) == pytest.approx((0.9 + 0.4) / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"energy": 0.5, "budget": 9}, "energy, budget: expected one of them, got both"),
        ({"energy": 0.0}, "energy: expected more than 0 and at most 1, got 0.0"),
        ({"energy": True}, "energy: expected more than 0 and at most 1, got True"),
        ({"budget": True}, "budget: expected a whole number, got True"),
        ({"budget": 31}, "budget: expected 6 to 30 slots for 6 heads of 1 to 5, got 31"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        choose_projected_dims(SPECTRUM, **arguments)
