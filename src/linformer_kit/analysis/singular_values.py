"""How fast the singular values of the context mapping P decay, and the choice of k by them.

Section 3 and Figure 1 of Wang et al. 2020: on real text most of P is in its largest singular values.

Axes: batch, layers, heads, rows (n), columns (n, or k slots), rank (the i-th largest singular value).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from linformer_cli.errors import InputError, check_input
from linformer_kit.internals import attention_implementation
from linformer_kit.linearized.attention import IMPLEMENTATION, LAYER
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.padding import take_positions, zero_padding
from linformer_kit.operator.projections import SequenceProjection, SharedProjection, Tokens, inside
from linformer_kit.operator.window import Window


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

    @property
    def quarter(self) -> int:
        """A quarter of the number of singular values, as in the paper: 128 of 512."""
        return max(1, self.cumulative.shape[-1] // 4)

    @property
    def shares(self) -> Float[np.ndarray, "layers heads"]:
        """The share of the largest quarter of the singular values in the sum of all."""
        return self.cumulative[..., self.quarter - 1]


def attention_spectrum(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> Spectrum:
    """Measure how fast the singular values of each layer's and head's context mapping decay, on real text.

    The weights of one layer are held at a time.

    Args:
        model: Encoder of transformers or of this package in evaluation mode. Of a linear layer P̄ is measured, n × k; of
            one with a sliding window or global tokens the n × n matrix M that makes M·V of the values: P̄·F, and the
            weight of each token that a query sees exactly in the column of that token.
        batches: Arguments of the model, on its device; with an `attention_mask`, only real tokens count.

    Returns:
        The curves, `cumulative[layer, head, rank]`, and their spread over samples.

    Raises:
        InputError: for a model in training mode or without attention weights, one with a window or global tokens
            whose slots are no weighted sums of tokens (max_pool, conv), weights with a NaN, or no batches.

    Source: Wang et al. 2020, section 3, Figure 1.
    """
    if model.training:
        raise InputError("model: expected one in evaluation mode (model.eval()), got one in training")
    samples = tokens = 0
    sums = squares = np.zeros((1, 1, 0))
    for inputs in batches:
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        curves = _curves(model, inputs, real)[real.any(dim=1).cpu()].numpy()
        rank = max(sums.shape[2], curves.shape[3])
        curves = _filled(curves, rank)
        sums = _filled(sums, rank, samples) + curves.sum(axis=0)
        squares = _filled(squares, rank, samples) + (curves**2).sum(axis=0)
        samples, tokens = samples + len(curves), tokens + int(real.sum())
    if not samples:
        raise InputError("batches: expected at least one with a real token, got none")
    mean = sums / samples
    return Spectrum(mean, np.sqrt(np.maximum(squares / samples - mean**2, 0)), samples, tokens)


@torch.no_grad()
def _curves(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], real: Bool[Tensor, "batch rows"]
) -> Float[Tensor, "batch layers heads rank"]:
    """Normalised cumulative singular values of one batch; 1 beyond the number of real tokens.

    Forward hooks take the weights of a layer as soon as it returns them, and keep only their curves.
    """
    curves: list[Tensor] = []
    # Real tokens first, as layers of this package have them; the order of the rows does not change singular values.
    order = (~real).sort(dim=1, stable=True).indices
    is_ours = isinstance(model.config, LinformerConfig)
    layers = {module: layer for module in model.modules() if (layer := _with_exact_tokens(module)) is not None}
    calls: dict[int, Tokens] = {}  # of the projection of the layer that runs

    def record(module: nn.Module, inputs: tuple[Tokens, int], output: Any) -> None:
        calls[inputs[1]] = inputs[0]

    def reduce(module: nn.Module, inputs: Any, output: Any) -> Any:
        weights = output[-1] if isinstance(output, tuple) else None
        if isinstance(weights, Tensor) and weights.ndim == 4:
            rows = weights if is_ours else take_positions(weights.transpose(1, 2), order).transpose(1, 2)
            rows = _mapping(layers[module], rows, calls) if module in layers else rows
            calls.clear()
            curves.append(_shares(rows, real.gather(1, order)))
            return (*output[:-1], None)
        return output

    # An attention layer returns its weights last; projections return keys and values, which also have four axes.
    modules = [module for module in model.modules() if not isinstance(module, SequenceProjection)]
    before = attention_implementation(model)
    by_request = is_ours or before == IMPLEMENTATION
    hooks = [module.register_forward_hook(reduce, prepend=True) for module in modules]
    hooks += [each.register_forward_hook(record) for each in {*map(_projection, layers.values())}]
    try:
        if not by_request:  # only the eager implementation returns weights
            model.set_attn_implementation("eager")
        outputs = model(**inputs, output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
        if not by_request:
            model.set_attn_implementation(before)
    if not curves or "decoder_attentions" in outputs:
        raise InputError(f"model: expected an encoder that returns attention weights, got a {model.config.model_type}")
    rank = max(curve.shape[-1] for curve in curves)  # of layers with slots and with full attention
    return torch.stack([F.pad(curve, (0, rank - curve.shape[-1]), value=1.0) for curve in curves], dim=1)


def _with_exact_tokens(module: nn.Module) -> Any:
    """The linear part of an attention layer whose queries see some tokens exactly, besides slots; None: of others."""
    layer: Any = module if isinstance(module, ProjectedAttention) else getattr(module, LAYER, None)
    has_slots = not (isinstance(layer, ProjectedAttention) and layer.is_full)
    is_exact = getattr(layer, "sliding_window", 0) or getattr(layer, "global_tokens", 0)
    return layer if has_slots and is_exact else None


def _projection(layer: Any) -> nn.Module:
    """E and F of a layer: its own, those that it shares, or the layer itself, in an encoder of transformers.

    Raises:
        InputError: if slots are no weighted sums of tokens.
    """
    projection = layer if isinstance(layer, SequenceProjection) else layer.projection
    projection = projection.module if isinstance(projection, SharedProjection) else projection
    if not inside(projection).commutes:
        expected = "slots that are weighted sums of tokens, in a layer with a sliding window or global tokens"
        raise InputError(f"model: expected {expected}, got those of {type(inside(projection)).__name__}")
    return projection


def _mapping(
    layer: Any, weights: Float[Tensor, "batch heads seq_len columns"], calls: dict[int, Tokens]
) -> Float[Tensor, "batch heads seq_len seq_len"]:
    """M of a layer with exact tokens: M·V = P̄·[global tokens of V; slots of V; neighbours of each query in V].

    Args:
        layer: The layer.
        weights: P̄, with real tokens first.
        calls: What the projection received in this forward pass by the number of slots, which may differ between
            heads. The slots of V = identity are F.
    """
    batch, heads, n, columns = weights.shape
    if not calls:  # a text so short that each token is a slot of its own
        return weights[..., :n]
    projection, window, first = _projection(layer), layer.sliding_window, min(layer.global_tokens, n)
    slots_of_tokens = {}
    for k, tokens in [*calls.items()]:
        identity = torch.eye(n - first).to(tokens.key).expand(*tokens.key.shape[:2], -1, -1)
        tokens = tokens._replace(value=zero_padding(identity, tokens.forward_pass.lengths))
        slots_of_tokens[k] = projection(tokens, k).value.to(weights)
    mapping = weights.new_zeros(batch, heads, n, n)
    mapping[..., :first] = weights[..., :first]
    own = None if layer is projection else layer.projected_dim
    for head, k in enumerate(inside(projection).checked_slots(own, heads)):
        slots = slots_of_tokens[k][:, head % slots_of_tokens[k].shape[1]]
        mapping[:, head, :, first:] = weights[:, head, :, first : first + slots.shape[1]] @ slots
    before = Window(window, getattr(layer, "causal", False)).before
    near = torch.arange(n)[:, None] + torch.arange(window) - before
    near = near.clamp(0, n - 1).to(weights.device)  # beyond the ends weights are zero
    return mapping.scatter_add(-1, near.expand(batch, heads, -1, -1), weights[..., columns - window :])


def _shares(
    weights: Float[Tensor, "batch heads rows columns"], real: Bool[Tensor, "batch rows"]
) -> Float[Tensor, "batch heads rank"]:
    """Normalised cumulative singular values of one layer."""
    if not weights.isfinite().all():
        raise InputError("model: expected finite numbers, got a NaN or infinity in the attention weights")
    sums = singular_values(weights.masked_fill(~real[:, None, :, None], 0.0)).cumsum(dim=-1)
    shares = (sums / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)).clamp(max=1)
    beyond = torch.arange(sums.shape[-1]) >= real.sum(dim=1).cpu()[:, None]
    return shares.masked_fill(beyond[:, None], 1.0)


def singular_values(matrices: Float[Tensor, "batch heads rows columns"]) -> Float[Tensor, "batch heads rank"]:
    """All singular values, the largest first, in float64 on the CPU.

    They are square roots of the eigenvalues of the smaller Gram matrix, which is faster than a decomposition in float32
    and more exact: the error is about 1e-8 of the largest value. Each matrix has a thread: small decompositions do not
    profit from more.
    """
    if matrices.shape[-2] < matrices.shape[-1]:
        matrices = matrices.mT
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            values = list(pool.map(_singular_values, matrices.cpu().flatten(0, 1)))
    finally:
        torch.set_num_threads(threads)
    return torch.stack(values).unflatten(0, matrices.shape[:2])


def _singular_values(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, " columns"]:
    exact = matrix.double()
    return torch.linalg.eigvalsh(exact.mT @ exact).clamp(min=0).sqrt().flip(-1)


def _filled(curves: np.ndarray, rank: int, value: float = 1.0) -> np.ndarray:
    """Curves padded to a larger rank with a constant."""
    missing = [(0, 0)] * (curves.ndim - 1) + [(0, rank - curves.shape[-1])]
    return np.pad(curves, missing, constant_values=value)


def choose_projected_dims(spectrum: Spectrum, *, energy: float = 0.9) -> list[int]:
    """Choose k for each layer, for `LinformerConfig(projected_dim=...)`.

    "Energy" is the paper's measure, the share of the k largest singular values in the sum of all (Figure 1), not of
    their squares; here the mean over the heads of a layer.

    Args:
        spectrum: Result of `attention_spectrum`, at the text length that the model is for.
        energy: Choose the smallest k with this share in each layer; above 0, at most 1.

    Returns:
        k of each layer.

    Source: the choice is ours; the paper suggests smaller k in higher layers (section 4). k for each head instead
    was worse than the same k everywhere, when measured (docs/learning.md).
    """
    is_share = isinstance(energy, Real) and not isinstance(energy, bool) and 0 < energy <= 1
    check_input(is_share, "energy", "a number above 0 and at most 1", energy)
    return [int(np.argmax(curve >= energy - 1e-12)) + 1 for curve in spectrum.cumulative.mean(axis=1)]
