"""The paper's equations as pure functions, and the plain reference of each.

Axes, here and in the signatures:

    batch      sequences                      heads      h in the paper
    seq_len    n, tokens of the keys          projected  k, slots
    query_len  tokens of the queries          embed      d_m, width of the model
    head_dim   d, width of a head

The functions whose names end in `_reference` are written as the paper writes them, one head at a time and with nothing
reordered. They are slow on purpose: the tests hold the fast path against them.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def split_heads(hidden: Float[Tensor, "batch seq_len embed"], num_heads: int) -> Float[Tensor, "batch heads seq_len d"]:
    """Split the width into heads and bring the heads before the sequence."""
    batch, seq_len, embed = hidden.shape
    return hidden.view(batch, seq_len, num_heads, embed // num_heads).transpose(1, 2)


def merge_heads(hidden: Float[Tensor, "batch heads seq_len d"]) -> Float[Tensor, "batch seq_len embed"]:
    """Concatenate the heads: the inverse of `split_heads`."""
    return hidden.transpose(1, 2).flatten(2)


def zero_padding(
    hidden: Float[Tensor, "batch seq_len embed"], padding_mask: Bool[Tensor, "batch seq_len"] | None
) -> Float[Tensor, "batch seq_len embed"]:
    """Set padded positions (True in `padding_mask`) to zero, by selection: a NaN in padding does not get through."""
    return hidden if padding_mask is None else hidden.masked_fill(padding_mask[..., None], 0.0)


def pooling_matrix(projected_dim: int, seq_len: int) -> Float[Tensor, "projected seq_len"]:
    """Mean pooling over windows that tile the sequence, scaled to keep the variance: the start of E and F.

    Window i holds positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋, so any k ≤ n gives exactly k windows, sizes at most one apart.
    Each of the w positions in a window weighs 1/√w, which is the mean times √w: independent inputs of variance 1 give
    slots of variance 1, whatever n is.
    """
    edges = [slot * seq_len // projected_dim for slot in range(projected_dim + 1)]
    matrix = torch.zeros(projected_dim, seq_len)
    for slot, (start, end) in enumerate(itertools.pairwise(edges)):
        matrix[slot, start:end] = 1 / math.sqrt(end - start)
    return matrix


def context_mapping(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads query_len keys"]:
    """The context mapping P of equation 2, or P̄ of equation 7 where the keys are slots: softmax(Q·Kᵀ/√d).

    `key_padding_mask` is True where a key is padding; a row without any real key is uniform, so that it stays finite.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


def scaled_dot_product_attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len keys"] | None]:
    """Attention of queries over keys (equation 2) or over slots (equation 7); the weights only where asked for.

    Without `need_weights` the query_len × keys matrix is never materialised by our code.
    """
    if need_weights:
        weights = context_mapping(query, key, key_padding_mask)
        return F.dropout(weights, dropout) @ value, weights
    mask = None
    if key_padding_mask is not None:
        # Finite instead of -inf: a row without any real key stays finite, and so does its gradient.
        mask = torch.zeros(key_padding_mask.shape, dtype=query.dtype, device=query.device)
        mask = mask.masked_fill(key_padding_mask, torch.finfo(query.dtype).min)[:, None, None, :]
        mask = mask.expand(-1, -1, query.shape[2], -1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None


class AttentionWeights(NamedTuple):
    """The parameters of one attention layer, as the references take them; biases may be None."""

    query: Float[Tensor, "embed embed"]
    key: Float[Tensor, "embed embed"]
    value: Float[Tensor, "embed embed"]
    output: Float[Tensor, "embed embed"]
    query_bias: Float[Tensor, " embed"] | None
    key_bias: Float[Tensor, " embed"] | None
    value_bias: Float[Tensor, " embed"] | None
    output_bias: Float[Tensor, " embed"] | None


def full_attention_reference(
    query: Float[Tensor, "batch query_len embed"],
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    weights: AttentionWeights,
    num_heads: int,
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
) -> Float[Tensor, "batch query_len embed"]:
    """Equations 1 and 2: Concat(head_1 … head_h)·W_O with head_i = softmax(Q·W_i^Q·(K·W_i^K)ᵀ/√d)·V·W_i^V."""
    heads = []
    for head in _head_slices(weights.query.shape[0], num_heads):
        q = F.linear(query, weights.query[head], _slice(weights.query_bias, head))
        k = F.linear(key, weights.key[head], _slice(weights.key_bias, head))
        v = F.linear(value, weights.value[head], _slice(weights.value_bias, head))
        heads.append(_softmax_attention_reference(q, k, v, padding_mask))
    return F.linear(torch.cat(heads, dim=-1), weights.output, weights.output_bias)


def linformer_attention_reference(
    query: Float[Tensor, "batch query_len embed"],
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    weights: AttentionWeights,
    key_projections: Float[Tensor, "heads projected max_seq_len"],
    value_projections: Float[Tensor, "heads projected max_seq_len"],
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    bias_order: str = "before_projection",
) -> Float[Tensor, "batch query_len embed"]:
    """Equation 7: head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V, one head after the other.

    Args:
        query: Input of the queries.
        key: Input of the keys.
        value: Input of the values.
        weights: W_Q, W_K, W_V, W_O and their biases.
        key_projections: E_i of each head; the first seq_len columns are used.
        value_projections: F_i of each head.
        padding_mask: True where key and value are padding; such rows are zero before E and F.
        bias_order: `before_projection`: E·(X·W + 1·b); `after_projection`: E·(X·W) + 1·b, as fairseq does.

    Source: Wang et al. 2020, section 4.
    """
    heads = []
    for index, head in enumerate(_head_slices(weights.query.shape[0], key_projections.shape[0])):
        q = F.linear(query, weights.query[head], _slice(weights.query_bias, head))
        k, v = (
            _project_reference(inputs, matrices[index], weight[head], _slice(bias, head), padding_mask, bias_order)
            for inputs, matrices, weight, bias in (
                (key, key_projections, weights.key, weights.key_bias),
                (value, value_projections, weights.value, weights.value_bias),
            )
        )
        heads.append(_softmax_attention_reference(q, k, v, None))
    return F.linear(torch.cat(heads, dim=-1), weights.output, weights.output_bias)


def _project_reference(
    inputs: Tensor, matrix: Tensor, weight: Tensor, bias: Tensor | None, padding_mask: Tensor | None, bias_order: str
) -> Tensor:
    """E·(X·W + 1·b) or E·(X·W) + 1·b for one head, padded rows zero."""
    seq_len = inputs.shape[1]
    before = bias if bias_order == "before_projection" else None
    mapped = zero_padding(F.linear(zero_padding(inputs, padding_mask), weight, before), padding_mask)
    slots = matrix[:, :seq_len] @ mapped
    return slots + bias if bias is not None and before is None else slots


def _softmax_attention_reference(q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if padding_mask is not None:
        scores = scores.masked_fill(padding_mask[:, None, :], -math.inf)
    return scores.softmax(dim=-1) @ v


def _head_slices(embed_dim: int, num_heads: int) -> list[slice]:
    head_dim = embed_dim // num_heads
    return [slice(head * head_dim, (head + 1) * head_dim) for head in range(num_heads)]


def _slice(bias: Tensor | None, head: slice) -> Tensor | None:
    return None if bias is None else bias[head]
