"""The paper's equation as written there: one head and one sequence at a time, without reordering.

Slow on purpose: tests compare the fast implementation with these functions. Start here to read the code.

    equation_7                      the paper's equation; with E = F = identity that of full attention (equation 2)
    linformer_attention_reference   the same with padding and what is beyond the paper
    causal_attention_reference      the same of each text up to its last token

Axes as in `slots`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

# The n → k map of one head, for the references: [real tokens, head_dim] of one sequence to [slots, head_dim].
PlainProjection = Callable[[Tensor], Tensor]
# The weights of the slots of one head, from the number of real tokens and the numbers of those that a query sees.
PlainWeights = Callable[[int, list[int]], Tensor]


class AttentionWeights(NamedTuple):
    """The parameters of one attention layer, for the references; biases may be None."""

    query: Float[Tensor, "embed embed"]
    key: Float[Tensor, "embed embed"]
    value: Float[Tensor, "embed embed"]
    output: Float[Tensor, "embed embed"]
    query_bias: Float[Tensor, " embed"] | None
    key_bias: Float[Tensor, " embed"] | None
    value_bias: Float[Tensor, " embed"] | None
    output_bias: Float[Tensor, " embed"] | None

    def head_weights(self, name: str, head: slice) -> tuple[Tensor, Tensor | None]:
        """W_i and the bias of one head, for a name such as `query`."""
        bias = getattr(self, f"{name}_bias")
        return getattr(self, name)[head], None if bias is None else bias[head]


def equation_7(
    query: Float[Tensor, "query_len embed"],
    key: Float[Tensor, "seq_len embed"],
    value: Float[Tensor, "seq_len embed"],
    weights: AttentionWeights,
    key_projections: Sequence[PlainProjection],
    value_projections: Sequence[PlainProjection],
) -> Float[Tensor, "query_len embed"]:
    """head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V for each head, and Concat(head_1 … head_h)·W_O.

    Source: Wang et al. 2020, section 4.
    """
    heads = []
    slices = _head_slices(weights.query.shape[0], len(key_projections))
    for head, project_key, project_value in zip(slices, key_projections, value_projections, strict=True):
        q = F.linear(query, *weights.head_weights("query", head))
        k = project_key(F.linear(key, *weights.head_weights("key", head)))
        v = project_value(F.linear(value, *weights.head_weights("value", head)))
        heads.append((q @ k.T / math.sqrt(q.shape[1])).softmax(dim=-1) @ v)
    return F.linear(torch.cat(heads, dim=-1), weights.output, weights.output_bias)


def linformer_attention_reference(
    query: Float[Tensor, "batch query_len embed"],
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    weights: AttentionWeights,
    key_projections: Sequence[PlainProjection],
    value_projections: Sequence[PlainProjection],
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    bias_order: str = "before_projection",
    sliding_window: int = 0,
    slot_weights: Sequence[PlainWeights] | None = None,
    global_tokens: int = 0,
) -> Float[Tensor, "batch query_len embed"]:
    """`equation_7` of each sequence, with padding, biases after the projection, and tokens that queries see exactly.

    Args:
        query: Input of the queries; with a window those of the last keys.
        key: Input of the keys.
        value: Input of the values.
        weights: W_Q, W_K, W_V, W_O and their biases.
        key_projections: E_i of each head.
        value_projections: F_i of each head.
        padding_mask: True where key and value are padding; the projections see the other rows only.
        bias_order: `before_projection`: E·(X·W + 1·b); `after_projection`: E·(X·W) + 1·b, as fairseq does.
        sliding_window: w, tokens that each query sees exactly, in one softmax with the slots (`neighbours_reference`).
        slot_weights: Weights of the slots of each head, of which the logarithms are added to their scores; None: 1.
        global_tokens: g, tokens at the start that every query sees exactly; the projections see the others only.

    Source: Wang et al. 2020, section 4. Not in the paper: the window (Zhu et al. 2021, Long-Short Transformer).
    """
    outputs = []
    for sample in range(len(query)):
        real = torch.ones(key.shape[1]).bool() if padding_mask is None else ~padding_mask[sample]
        queries = len(query[sample])
        near = neighbours_reference(real, sliding_window)[-queries:] if sliding_window else [[]] * queries
        heads = []
        for index, head in enumerate(_head_slices(weights.query.shape[0], len(key_projections))):
            key_weights, value_weights = weights.head_weights("key", head), weights.head_weights("value", head)
            keys, values = key[sample][real], value[sample][real]
            q = F.linear(query[sample], *weights.head_weights("query", head))
            k, v = F.linear(keys, *key_weights), F.linear(values, *value_weights)
            k_slots = _slots_reference(keys[global_tokens:], key_projections[index], *key_weights, bias_order)
            v_slots = _slots_reference(values[global_tokens:], value_projections[index], *value_weights, bias_order)
            rows = []
            for row, seen in zip(q, near, strict=True):
                exact = sorted({*range(min(global_tokens, len(k))), *seen})
                slot_counts = q.new_ones(len(k_slots))
                if slot_weights is not None and len(k_slots):
                    rest = [token - global_tokens for token in seen if token >= global_tokens]
                    slot_counts = slot_weights[index](len(k) - global_tokens, rest).to(q)
                some = slot_counts > 0
                log_weights = torch.cat([slot_counts[some].log(), q.new_zeros(len(exact))])
                scores = row @ torch.cat([k_slots[some], k[exact]]).T / math.sqrt(q.shape[1])
                rows.append((scores + log_weights).softmax(dim=-1) @ torch.cat([v_slots[some], v[exact]]))
            heads.append(torch.stack(rows))
        outputs.append(F.linear(torch.cat(heads, dim=-1), weights.output, weights.output_bias))
    return torch.stack(outputs)


def causal_attention_reference(
    query: Float[Tensor, "batch seq_len embed"],
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    *arguments: Any,
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    sliding_window: int = 0,
    **options: Any,
) -> Float[Tensor, "batch seq_len embed"]:
    """`linformer_attention_reference` of the text up to each token: what the last query of it gives.

    A window of 2w - 1 tokens around the last token is the w tokens that end with it. Outputs at padding are zero.

    Args:
        query: As of `linformer_attention_reference`, like the others.
        key: Input of the keys.
        value: Input of the values.
        arguments: Weights, key_projections and value_projections.
        padding_mask: True at padding.
        sliding_window: w, the number of tokens up to its own that each query sees exactly.
        options: The other arguments.
    """
    options["sliding_window"] = max(0, 2 * sliding_window - 1)
    outputs = torch.zeros_like(query)
    for sample in range(len(query)):
        real = torch.arange(query.shape[1]) if padding_mask is None else (~padding_mask[sample]).nonzero()[:, 0]
        for end in range(1, len(real) + 1):
            last, text = real[end - 1 : end], real[:end]
            inputs = (query[sample, last][None], key[sample, text][None], value[sample, text][None])
            outputs[sample, last] = linformer_attention_reference(*inputs, *arguments, **options)[0]
    return outputs


def neighbours_reference(real: Bool[Tensor, " seq_len"], sliding_window: int) -> list[list[int]]:
    """The tokens that each position sees exactly, by their numbers among the real tokens: the sliding window.

    These are itself, ⌊w/2⌋ tokens before it and ⌊(w - 1)/2⌋ after it; fewer at the ends of the text. Padding sees none.
    """
    ranks = real.cumsum(0) - 1
    before, after = sliding_window // 2, (sliding_window - 1) // 2
    return [
        list(range(max(0, rank - before), min(rank + after + 1, int(real.sum())))) if is_real else []
        for rank, is_real in zip(ranks.tolist(), real.tolist(), strict=True)
    ]


def _slots_reference(
    rows: Tensor, project: PlainProjection, weight: Tensor, bias: Tensor | None, bias_order: str
) -> Tensor:
    """E·(X·W + 1·b) or E·(X·W) + 1·b for one head of one sequence; no slots for no tokens."""
    if not len(rows):
        return weight.new_zeros(0, len(weight))
    if bias is None or bias_order == "before_projection":
        return project(F.linear(rows, weight, bias))
    return project(F.linear(rows, weight)) + bias


def _head_slices(embed_dim: int, num_heads: int) -> list[slice]:
    head_dim = embed_dim // num_heads
    return [slice(head * head_dim, (head + 1) * head_dim) for head in range(num_heads)]
