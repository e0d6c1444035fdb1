"""How many slots each layer and head needs, by its spectrum."""

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
    """k for each layer and head, for `LinformerConfig(projected_dim=...)`.

    "Energy" is the paper's measure, the share of the sum of the singular values that the k largest have (Figure 1), and
    not of their squares. One of `energy` and `budget` is given.

    Args:
        spectrum: What `attention_spectrum` found, at the length of text that the model is for.
        energy: The least k that keeps this share in each head, on average over samples; above 0, at most 1.
        budget: Slots of all heads of all layers together, with at least `multiple_of` in each head.
        aim: What a budget is for: the most energy in `total`, summed over heads, or the most for the head that has
            the `least`. In total a head with a flat spectrum gets next to nothing, for each slot gains little there.
        by: `head`, or `layer`: heads of a layer alike, by the mean of their curves; cheaper to run.
        multiple_of: What each k is a multiple of, as far as the rank allows.

    Returns:
        `[layers][heads]` of k.

    Raises:
        InputError: unless exactly one of energy and budget is given and in range, and for an energy that a spectrum of
            leading values alone does not reach.

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
    # Only ks that may be: multiples, and the whole rank.
    choices = np.unique(np.append(np.arange(multiple_of, rank + 1, multiple_of), rank))
    if energy is not None:
        dims = _least_dims(curves, choices, energy)
    else:
        assert budget is not None
        dims = _spend(curves, choices, budget, alike, aim)
    return [list(map(int, np.repeat(dims[layer], alike))) for layer in range(layers)]


def kept_energy(spectrum: Spectrum, projected_dims: list[list[int]]) -> float:
    """The share of the singular values that given ks keep, the mean over layers and heads."""
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
            f"energy: expected at most {reached:.3f}, which the {curves.shape[-1]} singular values of layer {layer}, "
            f"head {head} have, got {energy}"
        )
    return choices[enough.argmax(axis=-1)]


def _spend(curves: np.ndarray, choices: np.ndarray, budget: int, alike: int, aim: str) -> np.ndarray:
    """One step after the other, to where a slot gains most or where the energy is least; as far as the budget goes.

    For the total this is the best there is where all steps are alike, since the curves are concave; of larger steps
    some slots may be left that are too few for another.
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
