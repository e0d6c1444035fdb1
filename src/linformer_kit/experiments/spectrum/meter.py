"""The spectrum of attention: how fast the singular values of the context mapping P decay, for each layer and head.

Section 3 and Figure 1 of Wang et al. 2020: on real text most of P is in its largest singular values.
`linformer spectrum MODEL` plots the figure.

Axes: layers, heads, rank (the i-th largest singular value), seq_len (n), keys (n, or k slots).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from linformer_kit.errors import InputError
from linformer_kit.experiments.spectrum.capture import LayerAttention, visit_attention
from linformer_kit.experiments.spectrum.singular_values import cumulative_curves, leading_curves

_TOGETHER = 1 << 24  # elements of the matrices decomposed at a time; more only needs more memory


@dataclass(frozen=True)
class Spectrum:
    """Normalised cumulative singular values of the context mapping, averaged over samples.

    Attributes:
        cumulative: `cumulative[l, h, i]` is (σ_1 + … + σ_(i+1)) / (σ_1 + … + σ_r) of layer l and head h, the mean over
            all samples. A shorter sample, whose P has fewer singular values, counts as 1 beyond them.
        spread: Standard deviation of the same over samples.
        error: Largest estimated error of the curves of a layer and head, over samples and ranks
            (`singular_values.leading_curves`); 0 if all singular values were computed.
        samples: Number of sequences.
        tokens: Number of real tokens in them.
    """

    cumulative: Float[np.ndarray, "layers heads rank"]
    spread: Float[np.ndarray, "layers heads rank"]
    error: Float[np.ndarray, "layers heads"]
    samples: int
    tokens: int


class SpectrumMeter:
    """Compute the spectrum of a model batch by batch; memory is independent of the number of batches.

    Args:
        model: Encoder in evaluation mode.
        leading: Compute only this many of the largest singular values, by a randomised decomposition; default: all.
        unprojected: Of linear layers measure P of their queries and keys instead of P̄.

    Raises:
        InputError: for `leading` below 1.
    """

    def __init__(self, model: PreTrainedModel, *, leading: int | None = None, unprojected: bool = False) -> None:
        if leading is not None and leading < 1:
            raise InputError(f"leading: expected 1 or more, got {leading}")
        self._model, self._leading, self._unprojected = model, leading, unprojected
        self._totals: _Totals | None = None

    @property
    def samples(self) -> int:
        """Number of sequences added."""
        return 0 if self._totals is None else self._totals.samples

    def add(self, inputs: Mapping[str, Tensor]) -> None:
        """Run the model on a batch and add it; after an exception, nothing of it is added.

        Raises:
            InputError: as `visit_attention`, and for layers with different numbers of heads.
        """
        layers: list[tuple[np.ndarray, np.ndarray]] = []
        counts: list[int] = []

        def visit(layer: int, attention: LayerAttention) -> None:
            counts[:] = attention.real.sum(dim=1).tolist()
            layers.append(self._curves(attention))

        visit_attention(self._model, inputs, visit, unprojected=self._unprojected)
        heads = {curves.shape[1] for curves, _ in layers}
        if len(heads) > 1:
            raise InputError(f"model: expected one number of heads, got {sorted(heads)}")
        longest = max(curves.shape[2] for curves, _ in layers)
        by_layer = np.stack([_filled(curves, longest) for curves, _ in layers], axis=1)
        error = np.stack([bounds for _, bounds in layers], axis=1)
        present = np.array(counts) > 0
        if present.any():  # a single assignment, so that an interrupt leaves the totals consistent
            self._totals = _added(self._totals, by_layer[present], error[present], sum(counts))

    def result(self) -> Spectrum:
        """The spectrum of all batches.

        Raises:
            InputError: if there were no batches.
        """
        if self._totals is None:
            raise InputError("batches: expected at least one with a real token, got none")
        samples, tokens, total, squares, error = self._totals
        mean = total / samples
        return Spectrum(mean, np.sqrt(np.maximum(squares / samples - mean**2, 0)), error, samples, tokens)

    def _curves(self, attention: LayerAttention) -> tuple[np.ndarray, np.ndarray]:
        """Cumulative curves `[batch, heads, rank]`, and their estimated errors, `[batch, heads]`."""
        batch, heads, rows, columns = attention.mapping.shape
        limits = attention.real.sum(dim=1).cpu().repeat_interleave(heads).clamp(max=columns)
        together = max(1, _TOGETHER // (rows * columns))
        curves, error = [], []
        for some, most in zip(attention.mapping.flatten(0, 1).split(together), limits.split(together), strict=True):
            if self._leading is None:
                curves.append(cumulative_curves(some, most))
                error.append(torch.zeros(len(some), dtype=torch.float64))
            else:
                curve, bound = leading_curves(some, most, self._leading)
                curves.append(curve)
                error.append(bound)
        return tuple(torch.cat(parts).unflatten(0, (batch, heads)).numpy() for parts in (curves, error))


class _Totals(NamedTuple):
    """Sums over samples."""

    samples: int
    tokens: int
    curves: np.ndarray
    squares: np.ndarray
    error: np.ndarray  # the largest


def _added(totals: _Totals | None, curves: np.ndarray, error: np.ndarray, tokens: int) -> _Totals:
    fresh = _Totals(len(curves), tokens, curves.sum(0), (curves**2).sum(0), error.max(0))
    if totals is None:
        return fresh
    if totals.error.shape != fresh.error.shape:
        raise InputError(f"batches: expected {totals.error.shape} layers and heads, got {fresh.error.shape}")
    rank = max(fresh.curves.shape[2], totals.curves.shape[2])
    curves, squares = (
        _filled(before, rank, totals.samples) + _filled(now, rank, fresh.samples)
        for before, now in ((totals.curves, fresh.curves), (totals.squares, fresh.squares))
    )
    error = np.maximum(totals.error, fresh.error)
    return _Totals(totals.samples + fresh.samples, totals.tokens + tokens, curves, squares, error)


def attention_spectrum(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, leading: int | None = None
) -> Spectrum:
    """Measure how fast the singular values of each layer's and head's context mapping decay, on real text.

    Args:
        model: Encoder of transformers or of this package in evaluation mode; if it is linear, P̄ is measured.
        batches: Arguments of the model, on its device; with an `attention_mask`, only real tokens count.
        leading: Compute only this many of the largest singular values, by a randomised decomposition; default: all.

    Returns:
        The curves, `cumulative[layer, head, rank]`, and their spread over samples.

    Raises:
        InputError: for a model that is no encoder or returns no attention weights, weights with a NaN, or no batches.

    Source: Wang et al. 2020, section 3, Figure 1.
    """
    meter = SpectrumMeter(model, leading=leading)
    for batch in batches:
        meter.add(batch)
    return meter.result()


def _filled(curves: np.ndarray, rank: int, value: float = 1.0) -> np.ndarray:
    """Curves padded to a larger rank with a constant."""
    missing = rank - curves.shape[-1]
    if not missing:
        return curves
    return np.pad(curves, [(0, 0)] * (curves.ndim - 1) + [(0, missing)], constant_values=value)
