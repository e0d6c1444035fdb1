"""How fast the singular values of the context mapping P decay, for each layer and head.

Section 3 and Figure 1 of Wang et al. 2020: on real text most of P is in its largest singular values.

Axes: many (matrices), rows (n), columns (n, or k slots), layers, heads, rank (the i-th largest singular value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from linformer_kit.analysis.capture import LayerAttention, visit_attention
from linformer_kit.errors import InputError


@dataclass(frozen=True)
class Spectrum:
    """Normalised cumulative singular values of the context mapping, averaged over samples.

    Attributes:
        cumulative: `cumulative[l, h, i]` is (σ_1 + … + σ_(i+1)) / (σ_1 + … + σ_r) of layer l and head h, the mean over
            all samples. A shorter sample, whose P has fewer singular values, counts as 1 beyond them.
        spread: Standard deviation of the same over samples.
        samples: Number of sequences.
        tokens: Number of real tokens in them.
    """

    cumulative: Float[np.ndarray, "layers heads rank"]
    spread: Float[np.ndarray, "layers heads rank"]
    samples: int
    tokens: int


def attention_spectrum(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> Spectrum:
    """Measure how fast the singular values of each layer's and head's context mapping decay, on real text.

    Args:
        model: Encoder of transformers or of this package in evaluation mode; if it is linear, P̄ is measured.
        batches: Arguments of the model, on its device; with an `attention_mask`, only real tokens count.

    Returns:
        The curves, `cumulative[layer, head, rank]`, and their spread over samples.

    Raises:
        InputError: for a model that is no encoder or returns no attention weights, weights with a NaN, or no batches.

    Source: Wang et al. 2020, section 3, Figure 1.
    """
    meter = SpectrumMeter(model)
    for batch in batches:
        meter.add(batch)
    return meter.result()


class SpectrumMeter:
    """Compute the spectrum of a model batch by batch; memory is independent of the number of batches.

    Args:
        model: Encoder in evaluation mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._sums = _Sums(0, 0, np.zeros((1, 1, 0)), np.zeros((1, 1, 0)))

    @property
    def samples(self) -> int:
        """Number of sequences added."""
        return self._sums.samples

    def add(self, inputs: Mapping[str, Tensor]) -> None:
        """Run the model on a batch and add it; after an exception, nothing of it is added.

        Raises:
            InputError: as `visit_attention`, and for layers with different numbers of heads.
        """
        layers: list[np.ndarray] = []
        counts: list[int] = []

        def visit(layer: int, attention: LayerAttention) -> None:
            counts[:] = attention.real.sum(dim=1).tolist()
            mappings, heads = attention.mapping, attention.mapping.shape[1]
            limits = attention.real.sum(dim=1).cpu().repeat_interleave(heads)
            layers.append(cumulative_curves(mappings.flatten(0, 1), limits).unflatten(0, mappings.shape[:2]).numpy())

        visit_attention(self._model, inputs, visit)
        heads = {curves.shape[1] for curves in layers}
        if len(heads) > 1:
            raise InputError(f"model: expected one number of heads, got {sorted(heads)}")
        rank = max(self._sums.curves.shape[2], *(curves.shape[2] for curves in layers))
        present = np.array(counts) > 0
        curves = np.stack([_filled(curves, rank) for curves in layers], axis=1)[present]
        self._sums = _Sums(  # one assignment, so that an interrupt leaves the sums consistent
            self.samples + len(curves),
            self._sums.tokens + sum(counts),
            _filled(self._sums.curves, rank, self.samples) + curves.sum(0),
            _filled(self._sums.squares, rank, self.samples) + (curves**2).sum(0),
        )

    def result(self) -> Spectrum:
        """The spectrum of all batches.

        Raises:
            InputError: if there were no batches.
        """
        samples, tokens, curves, squares = self._sums
        if not samples:
            raise InputError("batches: expected at least one with a real token, got none")
        mean = curves / samples
        return Spectrum(mean, np.sqrt(np.maximum(squares / samples - mean**2, 0)), samples, tokens)


class _Sums(NamedTuple):
    """Sums over samples of the curves and of their squares."""

    samples: int
    tokens: int
    curves: Float[np.ndarray, "layers heads rank"]
    squares: Float[np.ndarray, "layers heads rank"]


def cumulative_curves(
    matrices: Float[Tensor, "many rows columns"], limits: Int[Tensor, " many"]
) -> Float[Tensor, "many rank"]:
    """Normalised cumulative singular values.

    Args:
        matrices: Context mappings, zero at padding.
        limits: The largest possible rank of each matrix; beyond it, its curve is 1.
    """
    sums = singular_values(matrices).cumsum(dim=-1)
    curves = sums / sums[:, -1:].clamp(min=torch.finfo(sums.dtype).tiny)
    return curves.clamp(max=1).masked_fill(torch.arange(curves.shape[1]) >= limits[:, None], 1.0)


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
    exact = (matrices.cpu() if matrices.device.type == "mps" else matrices).double()  # Apple's GPUs lack float64
    return torch.linalg.eigvalsh(exact.mT @ exact).clamp(min=0).sqrt().flip(-1)


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


def _filled(curves: np.ndarray, rank: int, value: float = 1.0) -> np.ndarray:
    """Curves padded to a larger rank with a constant."""
    missing = [(0, 0)] * (curves.ndim - 1) + [(0, rank - curves.shape[-1])]
    return np.pad(curves, missing, constant_values=value)
