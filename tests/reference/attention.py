"""A layer once more, plain and slow: one sequence, one head, one slot after the other.

`attention_reference` gives a layer's parameters to the functions in `operator.reference`; `plain_projections` turns its
projection into the functions that these take.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from linformer_kit import LinformerAttention
from linformer_kit.operator import projections as fast
from linformer_kit.operator.reference import (
    AttentionWeights,
    PlainProjection,
    causal_attention_reference,
    linformer_attention_reference,
)


def of_matrix(matrix: Tensor) -> PlainProjection:
    """X → E·X with the first columns of E."""
    return lambda rows: matrix[:, : len(rows)] @ rows


def attention_reference(
    layer: LinformerAttention, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None
) -> Tensor:
    """What the layer must give, by equation 2 or 7; zeros at padding if it is causal."""
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    weights = AttentionWeights(*(m.weight for m in maps), *(m.bias for m in maps))
    if isinstance(layer.projection, fast.FullAttention):
        identity = [lambda rows: rows] * layer.num_heads
        compute = causal_attention_reference if layer.causal else linformer_attention_reference
        return compute(query, key, value, weights, identity, identity, padding_mask=padding)
    dims = layer.projection.checked_slots(layer.projected_dim, layer.num_heads)
    settings = {
        "bias_order": layer.bias_order,
        "sliding_window": layer.sliding_window,
        "slot_weights": _weights(layer, dims),
        "global_tokens": layer.global_tokens,
        "causal": layer.causal,
    }
    return projected_attention_reference(layer.projection, dims, (query, key, value), weights, key, padding, **settings)


def projected_attention_reference(
    projection: fast.SequenceProjection,
    dims: tuple[int, ...],
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: AttentionWeights,
    tokens: Tensor,
    padding: Tensor | None = None,
    *,
    causal: bool = False,
    **settings,
) -> Tensor:
    """Equation 7, one sequence at a time for a projection that depends on the `tokens` before W_K."""
    if not isinstance(projection, fast.DynamicProjection):
        maps = plain_projections(projection, dims)
        compute = causal_attention_reference if causal else linformer_attention_reference
        return compute(*inputs, weights, *maps, padding_mask=padding, **settings)
    outputs = []
    for sample in range(len(tokens)):
        one = slice(sample, sample + 1)
        of_one = None if padding is None else padding[one]
        rows = tokens[sample] if padding is None else tokens[sample][~padding[sample]]
        rows = rows[settings.get("global_tokens", 0) :]
        matrices = [_matrix(projection, projection.key_projection, head, k) for head, k in enumerate(dims)]
        maps = [of_matrix((rows @ matrix.T).softmax(dim=0).T) for matrix in matrices]
        of_inputs = [each[one] for each in inputs]
        outputs.append(linformer_attention_reference(*of_inputs, weights, maps, maps, of_one, **settings))
    return torch.cat(outputs)


def _weights(layer: LinformerAttention, dims: tuple[int, ...]) -> list | None:
    """The weights of the slots of each head: the share of the tokens of a window that a query does not see."""
    projection = layer.projection
    stretch, n = projection.shorter_input == "stretch", projection.seq_len
    if not projection.windowed:
        return None

    def shares(k: int, length: int, seen: list[int]) -> Tensor:
        share = [len(set(window) - set(seen)) / len(window) for window in windows(k, n, length, stretch)]
        return torch.tensor(share, dtype=torch.float64)

    return [functools.partial(shares, k) for k in dims]


def windows(projected_dim: int, max_seq_len: int, length: int, stretch: bool) -> list[range]:
    """The real positions of each window that has any."""
    if stretch:
        count = min(projected_dim, length)
        return [range(i * length // count, (i + 1) * length // count) for i in range(count)]
    edges = [i * max_seq_len // projected_dim for i in range(projected_dim + 1)]
    cut = [range(edges[i], min(edges[i + 1], length)) for i in range(projected_dim)]
    return [window for window in cut if len(window)]


def plain_projections(
    projection: fast.SequenceProjection, dims: tuple[int, ...]
) -> tuple[list[PlainProjection], list[PlainProjection]]:
    """The maps of keys and of values of each head, with so many slots."""
    keys = [_plain(projection, "key_projection", head, k) for head, k in enumerate(dims)]
    values = [_plain(projection, "value_projection", head, k) for head, k in enumerate(dims)]
    return keys, values


def _plain(projection: fast.SequenceProjection, name: str, head: int, k: int) -> PlainProjection:
    stretch = projection.shorter_input == "stretch"
    n = projection.seq_len

    def pool(reduce):
        return lambda rows: torch.stack([reduce(rows[list(w)]) for w in windows(k, n, len(rows), stretch)])

    if isinstance(projection, fast.MeanPoolProjection):
        return pool(lambda rows: rows.mean(dim=0))
    if isinstance(projection, fast.MaxPoolProjection):
        return pool(lambda rows: rows.amax(dim=0))
    if isinstance(projection, fast.RandomProjection):
        matrix = projection.matrix[:k] * math.sqrt(projection.projected_dim / k)
        return of_matrix(matrix)
    weight = getattr(projection, name)
    weight = projection.key_projection if weight is None else weight
    if isinstance(projection, fast.ConvProjection):
        kernel = weight[head] if projection.sharing == "none" else weight
        return pool(lambda rows: sum(kernel[:, tap] * row for tap, row in enumerate(rows)))
    return of_matrix(_matrix(projection, weight, head, k))


def _matrix(projection: fast.SequenceProjection, weight: Tensor, head: int, k: int) -> Tensor:
    """The first k rows of a head."""
    return weight[:k] if projection.sharing != "none" else weight[head, :k]
