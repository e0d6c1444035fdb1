"""Choose the number of slots of each layer and head by its spectrum."""

from __future__ import annotations

import heapq

import numpy as np

from linformer_kit.errors import InputError
from linformer_kit.experiments.spectrum.meter import Spectrum
from linformer_kit.operator.projections import is_integer


def choose_projected_dims(
    spectrum: Spectrum,
    *,
    energy: float | None = None,
    budget: int | None = None,
    aim: str = "total",
    by: str = "head",
    multiple_of: int = 1,
) -> list[list[int]]:
    """Choose k for each layer and head, for `LinformerConfig(projected_dim=...)`.

    "Energy" is the paper's measure, the share of the k largest singular values in the sum of all (Figure 1), not of
    their squares. Exactly one of `energy` and `budget` must be given.

    Args:
        spectrum: Result of `attention_spectrum`, at the text length that the model is for.
        energy: Choose the smallest k that keeps this share in each head, on average over samples; above 0, at most 1.
        budget: Total slots of all heads of all layers, with at least `multiple_of` in each head.
        aim: What a budget maximises: the energy in `total`, summed over heads, or that of the head with the `least`.
            With `total`, heads with a flat spectrum get very few slots, as each slot gains little there.
        by: `head`, or `layer`: the same k for all heads of a layer, by the mean of their curves; cheaper to run.
        multiple_of: Make each k a multiple of this, or the rank.

    Returns:
        `[layers][heads]` of k.

    Raises:
        InputError: unless exactly one of energy and budget is given and in range, and for an energy that a spectrum of
            only the leading values does not reach.

    Source: the allocation is ours; the paper suggests smaller k in higher layers (section 4).
    """
    if (energy is None) == (budget is None):
        raise InputError(f"energy, budget: expected one of them, got {'neither' if energy is None else 'both'}")
    for name, number in (("budget", budget), ("multiple_of", multiple_of)):
        if number is not None and not is_integer(number):
            raise InputError(f"{name}: expected a whole number, got {number!r}")
    if isinstance(energy, (bool, str)):
        raise InputError(f"energy: expected a number, got {energy!r}")
    for name, value, known in (("aim", aim, ("total", "least")), ("by", by, ("head", "layer"))):
        if value not in known:
            raise InputError(f"{name}: expected {' or '.join(known)}, got {value!r}")
    layers, heads, rank = spectrum.cumulative.shape
    if not 1 <= multiple_of <= rank:
        raise InputError(f"multiple_of: expected 1 to {rank} (the rank), got {multiple_of!r}")
    curves = spectrum.cumulative
    if by == "layer":
        curves = curves.mean(axis=1, keepdims=True)
    alike = heads // curves.shape[1]
    # Allowed values of k: multiples, and the whole rank.
    choices = np.unique(np.append(np.arange(multiple_of, rank + 1, multiple_of), rank))
    if energy is not None:
        dims = _least_dims(curves, choices, energy)
    else:
        assert budget is not None
        dims = _spend(curves, choices, budget, alike, aim)
    return [list(map(int, np.repeat(dims[layer], alike))) for layer in range(layers)]


def kept_energy(spectrum: Spectrum, projected_dims: list[list[int]]) -> float:
    """Share of the singular values that the given k keep, averaged over layers and heads."""
    places = np.array(projected_dims)[..., None] - 1
    return float(np.take_along_axis(spectrum.cumulative, places, axis=-1).mean())


def _least_dims(curves: np.ndarray, choices: np.ndarray, energy: float) -> np.ndarray:
    if not 0 < energy <= 1:
        raise InputError(f"energy: expected more than 0 and at most 1, got {energy}")
    enough = curves[..., choices - 1] >= energy - 1e-12
    short = np.argwhere(~enough[..., -1])
    if len(short):
        layer, head = short[0]
        reached = curves[layer, head, -1]
        raise InputError(
            f"energy: expected at most {reached:.3f} (that of {curves.shape[-1]} singular values in layer {layer}, "
            f"head {head}), got {energy}"
        )
    return choices[enough.argmax(axis=-1)]


def _spend(curves: np.ndarray, choices: np.ndarray, budget: int, alike: int, aim: str) -> np.ndarray:
    """Spend a budget greedily: each step goes where a slot gains most (total) or where the energy is lowest (least).

    For the total this is optimal if all steps have the same size, since the curves are concave. With larger steps, some
    slots may be left over that are too few for another step.
    """
    count, rank = curves[..., 0].size * alike, curves.shape[-1]
    if not count * choices[0] <= budget <= count * rank:
        raise InputError(
            f"budget: expected {count * choices[0]} to {count * rank} slots for {count} heads of {choices[0]} to "
            f"{rank}, got {budget}"
        )
    energies = curves.reshape(-1, rank)[:, choices - 1]
    sizes = np.diff(choices)
    priorities = -np.diff(energies, axis=1) / sizes if aim == "total" else energies[:, :-1]
    taken = np.zeros(len(energies), dtype=int)
    left = budget - count * int(choices[0])
    heap = [(priorities[row, 0], row) for row in range(len(energies))] if len(sizes) else []
    heapq.heapify(heap)
    while heap:
        _, row = heapq.heappop(heap)
        cost = int(sizes[taken[row]]) * alike
        if cost <= left:
            taken[row] += 1
            left -= cost
            if taken[row] < len(sizes):
                heapq.heappush(heap, (priorities[row, taken[row]], row))
    return choices[taken].reshape(curves.shape[:-1])
