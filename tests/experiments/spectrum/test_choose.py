"""k for each layer and head: against every possible choice, and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from linformer_kit import InputError, LinformerConfig, Spectrum, choose_projected_dims
from linformer_kit.experiments.spectrum.choose import kept_energy


def of(*curves: list[float], heads: int) -> Spectrum:
    """A spectrum by the shares of its singular values."""
    shares = np.array(curves, dtype=float).reshape(-1, heads, len(curves[0]))
    cumulative = shares.cumsum(-1) / shares.sum(-1, keepdims=True)
    return Spectrum(cumulative, np.zeros_like(cumulative), np.zeros(cumulative.shape[:2]), samples=1, tokens=1)


STEEP, FLAT, BETWEEN = [8, 1, 1, 0, 0], [2, 2, 2, 2, 2], [4, 3, 2, 1, 0]
SPECTRUM = of(STEEP, FLAT, BETWEEN, [5, 4, 1, 0, 0], [6, 2, 1, 1, 0], FLAT, heads=3)


def test_the_least_k_with_the_energy():
    assert choose_projected_dims(SPECTRUM, energy=0.8) == [[1, 4, 3], [2, 2, 4]]
    assert choose_projected_dims(SPECTRUM, energy=0.81) == [[2, 5, 3], [2, 3, 5]]
    assert choose_projected_dims(SPECTRUM, energy=1.0) == [[3, 5, 4], [3, 4, 5]]


def test_by_layer_heads_are_alike():
    spectrum = of(STEEP, FLAT, heads=2)  # mean curve 0.6, 0.8 - 0.15, …
    assert choose_projected_dims(spectrum, energy=0.65, by="layer") == [[2, 2]]
    assert choose_projected_dims(SPECTRUM, budget=15, by="layer") in ([[3, 3, 3], [2, 2, 2]], [[2, 2, 2], [3, 3, 3]])


@pytest.mark.parametrize("multiple_of", [1, 2])
@pytest.mark.parametrize("budget", [12, 13, 17, 23, 29, 30])
def test_a_budget_keeps_as_much_as_any_choice(budget, multiple_of):
    if multiple_of == 1:
        rng = np.random.default_rng(budget)
        spectrum = of(*np.sort(rng.random((6, 5)) ** 3, axis=1)[:, ::-1].tolist(), heads=3)
        choices = range(1, 6)
    else:
        spectrum, choices = SPECTRUM, (2, 4, 5)
    dims = choose_projected_dims(spectrum, budget=budget, multiple_of=multiple_of)
    assert np.sum(dims) <= budget and set(np.ravel(dims)) <= set(choices)
    if multiple_of == 1:  # else the last slots may be too few for another step
        assert np.sum(dims) == budget
        best = max(
            kept_energy(spectrum, np.reshape(ks, (2, 3)).tolist())
            for ks in itertools.product(choices, repeat=6)
            if sum(ks) <= budget
        )
        assert kept_energy(spectrum, dims) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("multiple_of", [1, 2])
@pytest.mark.parametrize("budget", [12, 13, 17, 23, 29, 30])
def test_a_budget_for_the_least_head_leaves_none_lower_than_it_must(budget, multiple_of):
    rng = np.random.default_rng(budget)
    spectrum = of(*np.sort(rng.random((6, 5)) ** 3, axis=1)[:, ::-1].tolist(), heads=3)
    choices = range(1, 6) if multiple_of == 1 else (2, 4, 5)
    dims = choose_projected_dims(spectrum, budget=budget, aim="least", multiple_of=multiple_of)
    assert np.sum(dims) <= budget and set(np.ravel(dims)) <= set(choices)

    def least(ks: object) -> float:
        places = np.reshape(ks, (2, 3, 1)) - 1
        return float(np.take_along_axis(spectrum.cumulative, places, axis=-1).min())

    best = max(least(ks) for ks in itertools.product(choices, repeat=6) if sum(ks) <= budget)
    assert least(dims) == pytest.approx(best, abs=1e-12)


def test_a_flat_head_is_starved_by_the_total_and_fed_for_the_least():
    spectrum = of([30, 25, 24, 21, 0], FLAT, heads=2)
    assert choose_projected_dims(spectrum, budget=5) == [[4, 1]]
    assert choose_projected_dims(spectrum, budget=5, aim="least") == [[2, 3]]


def test_gains_count_for_each_slot():
    """Ks may be 2, 4 and 5. The last two slots are worth .10 and .09 in the first and third head, .15 in the second."""
    shares = ([30, 30, 15, 15, 10], [50, 35, 7.5, 7.5, 0], [30, 30, 15.5, 15.5, 9])
    assert choose_projected_dims(of(*shares, heads=3), budget=12, multiple_of=2) == [[5, 2, 5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 9.5}, "budget: expected a whole number, got 9.5"),
        ({"budget": True}, "budget: expected a whole number, got True"),
        ({"budget": 9, "multiple_of": 2.5}, "multiple_of: expected a whole number, got 2.5"),
        ({"energy": "x"}, "energy: expected a number, got 'x'"),
        ({"energy": True}, "energy: expected a number, got True"),
    ],
)
def test_other_types_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        choose_projected_dims(SPECTRUM, **arguments)


def test_kept_energy_by_hand():
    assert kept_energy(of(STEEP, FLAT, heads=2), [[1, 3]]) == pytest.approx((0.8 + 0.6) / 2)


def test_the_result_is_a_config():
    dims = choose_projected_dims(SPECTRUM, budget=17)
    LinformerConfig(
        max_position_embeddings=5, num_hidden_layers=2, num_attention_heads=3, hidden_size=33, projected_dim=dims
    )
    assert all(type(k) is int for row in dims for k in row)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "energy, budget: expected one of them, got neither"),
        ({"energy": 0.5, "budget": 9}, "energy, budget: expected one of them, got both"),
        ({"energy": 0.0}, "energy: expected more than 0 and at most 1, got 0.0"),
        ({"energy": 1.1}, "energy: expected more than 0 and at most 1, got 1.1"),
        ({"budget": 5}, "budget: expected 6 to 30 slots for 6 heads of 1 to 5, got 5"),
        ({"budget": 31}, "budget: expected 6 to 30 slots for 6 heads of 1 to 5, got 31"),
        ({"budget": 11, "multiple_of": 2}, "budget: expected 12 to 30 slots for 6 heads of 2 to 5, got 11"),
        ({"budget": 9, "multiple_of": 6}, "multiple_of: expected 1 to 5 \\(the rank\\), got 6"),
        ({"budget": 9, "aim": "most"}, "aim: expected total or least, got 'most'"),
        ({"budget": 9, "by": "model"}, "by: expected head or layer, got 'model'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        choose_projected_dims(SPECTRUM, **arguments)


def test_an_energy_beyond_the_leading_values_is_refused():
    leading = Spectrum(SPECTRUM.cumulative[..., :2], SPECTRUM.spread[..., :2], SPECTRUM.error, samples=1, tokens=1)
    with pytest.raises(InputError, match=r"at most 0\.400 \(that of 2 singular values in layer 0, head 1\), got 0.5"):
        choose_projected_dims(leading, energy=0.5)
