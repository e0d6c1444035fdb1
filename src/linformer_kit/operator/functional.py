"""The paper's equations as pure functions, and the plain reference of each.

Axes, here and in the signatures:

    batch      sequences                      heads      h in the paper
    seq_len    n, tokens of the keys          projected  k, slots; `slots` where a short text makes fewer
    query_len  tokens of the queries          embed      d_m, width of the model
    head_dim   d, width of a head

The functions whose names end in `_reference` are written as the paper writes them, one head at a time and with nothing
reordered. They are slow on purpose: the tests hold the fast path against them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.errors import InputError
from linformer_kit.operator import kernels


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


def real_tokens_first(padding_mask: Bool[Tensor, "batch seq_len"]) -> Int[Tensor, "batch seq_len"]:
    """The positions of the real tokens in their order, then those of padding.

    Taken in this order every sequence is padded on its right only, so that left padding and holes are nothing special.
    """
    return padding_mask.int().argsort(dim=1, stable=True)


def take_positions(
    hidden: Float[Tensor, "batch seq_len embed"], positions: Int[Tensor, "batch taken"]
) -> Float[Tensor, "batch taken embed"]:
    """The given positions of each sequence."""
    return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))


def padding_after(lengths: Int[Tensor, " batch"], seq_len: int) -> Bool[Tensor, "batch seq_len"]:
    """The padding mask, True where padded, of sequences that begin with `lengths` real tokens."""
    return torch.arange(seq_len, device=lengths.device) >= lengths[:, None]


def pooling_matrix(projected_dim: int, seq_len: int) -> Float[Tensor, "projected seq_len"]:
    """Mean pooling over windows that tile the sequence, scaled to keep the variance.

    Window i holds positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋, so any k ≤ n gives exactly k windows, sizes at most one apart.
    Each of the w positions in a window weighs 1/√w, which is the mean times √w: independent inputs of variance 1 give
    slots of variance 1, whatever n is.
    """
    edges = [slot * seq_len // projected_dim for slot in range(projected_dim + 1)]
    matrix = torch.zeros(projected_dim, seq_len)
    for slot, (start, end) in enumerate(itertools.pairwise(edges)):
        matrix[slot, start:end] = 1 / math.sqrt(end - start)
    return matrix


def spread_order(count: int) -> list[int]:
    """0 … count-1 in an order of which every beginning is spread evenly: by their bits, the lowest first.

    Example:
        >>> spread_order(8)
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = (count - 1).bit_length()
    reversed_bits = (sum((index >> bit & 1) << (bits - 1 - bit) for bit in range(bits)) for index in range(1 << bits))
    return [index for index in reversed_bits if index < count]


def stretch_matrix(matrix: Float[Tensor, "*rows seq_len"], width: int) -> Float[Tensor, "*rows width"]:
    """Resample the columns of E or F from n positions to m, fewer or more; row sums stay.

    Each row is read as a function that is constant over each of n equal parts of the text, and integrated over m equal
    parts instead: column j of the result is the integral over [j·n/m, (j+1)·n/m).
    """
    integral = _integral(matrix)
    whole, part = _edges(integral, torch.full((1, 1), width, device=matrix.device), width)
    low, high = (integral[..., columns[0]] for columns in (whole, (whole + 1).clamp(max=matrix.shape[-1])))
    return torch.lerp(low, high, part[0].expand_as(low)).diff(dim=-1).to(matrix.dtype)


def stretch_to_lengths(
    matrix: Float[Tensor, "*rows seq_len"], lengths: Int[Tensor, " batch"], width: int
) -> Float[Tensor, "batch *rows width"]:
    """`stretch_matrix` to the length m of each sequence, and columns of zeros after it.

    A sequence of no tokens counts as one of a single token.
    """
    integral = _integral(matrix)
    whole, part = _edges(integral, lengths.clamp(min=1)[:, None], width)
    # Positions in front: for many sequences it pays to take, and in the backward pass to add, whole columns at once.
    columns = integral.movedim(-1, 0).contiguous()
    low, high = columns[whole], columns[(whole + 1).clamp(max=matrix.shape[-1])]
    sums = torch.lerp(low, high, part.view(*part.shape, *[1] * (matrix.dim() - 1)).expand_as(low))
    return sums.diff(dim=1).to(matrix.dtype).movedim(1, -1)


def _integral(matrix: Float[Tensor, "*rows seq_len"]) -> Float[Tensor, "*rows edges"]:
    """Of each row from its beginning to each of its n+1 edges; exact, because differences of long sums follow."""
    exact = matrix.float() if matrix.device.type == "mps" else matrix.double()  # Apple's GPUs have no doubles
    return F.pad(exact.cumsum(dim=-1), (1, 0))


def _edges(
    integral: Float[Tensor, "*rows edges"], lengths: Int[Tensor, "batch 1"], width: int
) -> tuple[Int[Tensor, "batch new_edges"], Float[Tensor, "batch new_edges"]]:
    """Where the edges of the new columns lie among the old ones: the edge before, and the part of a column after it."""
    edges = torch.minimum(torch.arange(width + 1, device=integral.device), lengths) * (integral.shape[-1] - 1)
    return edges // lengths, (edges % lengths).to(integral.dtype) / lengths


def stretch_tokens(
    hidden: Float[Tensor, "batch seq_len embed"], lengths: Int[Tensor, " batch_or_1"], width: int
) -> Float[Tensor, "batch width embed"]:
    """Spread the first m tokens of each sequence evenly over n ≥ m positions.

    Position i of n covers the part [i·m/n, (i+1)·m/n) of the text, which touches one token or two neighbours, and gets
    their mean by how much of each it touches. So E·(stretched X) is E, resampled to m columns by `stretch_matrix`,
    times X; at m = n it is X itself.

    Args:
        hidden: Tokens, padded on the right only.
        lengths: m of each sequence, or one for all.
        width: n.
    """
    count = lengths.clamp(min=1)[:, None]
    edges = torch.arange(width, device=hidden.device) * count
    first = edges // width
    exact = torch.promote_types(hidden.dtype, torch.float32)
    share = (((first + 1) * width - edges).to(exact) / count).clamp(max=1)[..., None].to(hidden.dtype)
    second = torch.minimum(first + 1, count - 1)
    first, second = (positions.expand(hidden.shape[0], -1) for positions in (first, second))
    return take_positions(hidden, first) * share + take_positions(hidden, second) * (1 - share)


def resize_positions(
    positions: Float[Tensor, "seq_len embed"], new_seq_len: int, mode: str
) -> Float[Tensor, "new_seq_len embed"]:
    """A table of positions for another length: repeated periodically (`extend`) or stretched (`interpolate`)."""
    if mode == "extend":
        return positions[torch.arange(new_seq_len, device=positions.device) % len(positions)]
    stretched = F.interpolate(positions.float().T[None], size=new_seq_len, mode="linear")[0].T
    return stretched.to(positions.dtype)


class Windows(NamedTuple):
    """Windows over right-padded sequences: the positions of each, and which of these are real."""

    positions: Int[Tensor, "batch_or_1 slots window"]
    real: Bool[Tensor, "batch_or_1 slots window"]

    @property
    def empty(self) -> Bool[Tensor, "batch_or_1 slots"]:
        """True for a slot without any real token."""
        return ~self.real[..., 0]

    def of(
        self, hidden: Float[Tensor, "batch seq_len embed"], fill: float = 0.0
    ) -> Float[Tensor, "batch slots window embed"]:
        """What stands in the windows; `fill` where nothing real does."""
        batch, slots, width = self.positions.shape
        if batch == 1:
            inside = hidden.index_select(1, self.positions.flatten())
        else:
            inside = take_positions(hidden, self.positions.flatten(1))
        return inside.unflatten(1, (slots, width)).masked_fill(~self.real[..., None], fill)


def pooling_windows(
    projected_dim: int,
    max_seq_len: int,
    seq_len: int,
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    stretch: bool = False,
    count: int | None = None,
    device: torch.device | None = None,
) -> Windows:
    """The windows of pooling and convolution: they tile the sequence, sizes at most one apart, exactly k of them.

    Of n positions window i holds ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋. A text of m < n tokens keeps these windows and fills only
    the first ones, the last of them perhaps in part; or, with `stretch`, min(k, m) windows tile the m tokens.

    Args:
        projected_dim: k.
        max_seq_len: n.
        seq_len: Positions in the batch, padding included.
        lengths: Real tokens at the start of each sequence; default: all are real.
        stretch: Whether windows follow the real length.
        count: How many windows to return; default: as many as seq_len positions can fill.
        device: Where the result lives.
    """
    real = torch.full((1,), seq_len, device=device) if lengths is None else lengths
    tiled: int | Tensor = max_seq_len
    windows: int | Tensor = projected_dim
    fillable = -(-seq_len * projected_dim // max_seq_len)
    if stretch:
        tiled, windows = real[:, None], real.clamp(min=1, max=projected_dim)[:, None]
        fillable = min(projected_dim, seq_len)
    edges = torch.arange((fillable if count is None else count) + 1, device=real.device) * tiled // windows
    edges = torch.minimum(edges.expand(real.shape[0], -1), real[:, None])
    positions = edges[:, :-1, None] + torch.arange(-(-max_seq_len // projected_dim), device=real.device)
    return Windows(positions.clamp(max=seq_len - 1), positions < edges[:, 1:, None])


def context_mapping(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch_or_1 keys"] | None = None,
) -> Float[Tensor, "batch heads query_len keys"]:
    """The context mapping P of equation 2, or P̄ of equation 7 where the keys are slots: softmax(Q·Kᵀ/√d).

    `key_padding_mask` is True where a key is padding; where all are, the mask is ignored, so that the row stays finite.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if key_padding_mask is not None:
        scores = scores.masked_fill(_some_key(key_padding_mask)[:, None, None, :], -math.inf)
    return scores.softmax(dim=-1)


def _some_key(padding_mask: Bool[Tensor, "batch keys"]) -> Bool[Tensor, "batch keys"]:
    """The mask, but without effect where it would leave no key at all."""
    return padding_mask & ~padding_mask.all(dim=1, keepdim=True)


def scaled_dot_product_attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    key_padding_mask: Bool[Tensor, "batch_or_1 keys"] | None = None,
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
    slots: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len keys"] | None]:
    """Attention of queries over keys (equation 2) or, with `slots`, over slots (equation 7); weights where asked for.

    Without `need_weights` the query_len × keys matrix is never materialised by our code. The kernel for slots serves
    full attention too where gradients are wanted: flash attention's backward pass is slower on CPUs (docs/speed.md).
    """
    if need_weights:
        weights = context_mapping(query, key, key_padding_mask)
        return F.dropout(weights, dropout) @ value, weights
    mask = None
    if key_padding_mask is not None:
        mask = ~_some_key(key_padding_mask)[:, None, None, :]
    if slots or torch.is_grad_enabled():
        return kernels.attention(query, key, value, mask, dropout=dropout), None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None


def svd_attention(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads seq_len head_dim"],
    value: Float[Tensor, "batch heads seq_len head_dim"],
    rank: int,
    key_padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    *,
    query_padding_mask: Bool[Tensor, "batch query_len"] | None = None,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len seq_len"]]:
    """Attention by the best approximation of P of a given rank: P_low = Σ_{i≤k} σ_i·u_i·v_iᵀ, and P_low·V.

    A reference for analysis and no faster attention: it forms the n×n matrix P and its singular value decomposition,
    O(n²) memory and O(n³) time. By Eckart and Young no matrix of that rank is closer to P.

    Args:
        query: Q·W_Q, split into heads.
        key: K·W_K.
        value: V·W_V.
        rank: k, from 1 to the smaller side of P.
        key_padding_mask: True where keys are padding.
        query_padding_mask: True where queries are padding; such rows of P count as zero.

    Returns:
        P_low·V, and P_low.

    Raises:
        InputError: for a rank out of range.

    Source: Wang et al. 2020, section 3, equation 6.
    """
    largest = min(query.shape[2], key.shape[2])
    if not isinstance(rank, int) or not 1 <= rank <= largest:
        raise InputError(f"rank: expected 1 to {largest} (the smaller side of P), got {rank!r}")
    mapping = context_mapping(query, key, key_padding_mask)
    if query_padding_mask is not None:
        mapping = mapping.masked_fill(query_padding_mask[:, None, :, None], 0.0)
    if key_padding_mask is not None:
        value = value.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    u, sigma, vh = torch.linalg.svd(mapping, full_matrices=False)
    low_rank = (u[..., :rank] * sigma[..., None, :rank]) @ vh[..., :rank, :]
    return low_rank @ value, low_rank


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


# The n → k map of one head as the references take it: [real tokens, head_dim] of one sequence to [slots, head_dim].
PlainProjection = Callable[[Tensor], Tensor]


def matrix_projection_reference(matrix: Float[Tensor, "projected max_seq_len"]) -> PlainProjection:
    """The linear projection X → E·X by its first columns."""
    return lambda rows: matrix[:, : len(rows)] @ rows


def linformer_attention_reference(
    query: Float[Tensor, "batch query_len embed"],
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    weights: AttentionWeights,
    key_projections: Sequence[PlainProjection],
    value_projections: Sequence[PlainProjection],
    padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
    bias_order: str = "before_projection",
) -> Float[Tensor, "batch query_len embed"]:
    """Equation 7: head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V, one sequence and one head after the other.

    Args:
        query: Input of the queries.
        key: Input of the keys.
        value: Input of the values.
        weights: W_Q, W_K, W_V, W_O and their biases.
        key_projections: E_i of each head.
        value_projections: F_i of each head.
        padding_mask: True where key and value are padding; the projections see the other rows only.
        bias_order: `before_projection`: E·(X·W + 1·b); `after_projection`: E·(X·W) + 1·b, as fairseq does.

    Source: Wang et al. 2020, section 4.
    """
    outputs = []
    for sample in range(len(query)):
        real = slice(None) if padding_mask is None else ~padding_mask[sample]
        heads = []
        for index, head in enumerate(_head_slices(weights.query.shape[0], len(key_projections))):
            q = F.linear(query[sample], weights.query[head], _slice(weights.query_bias, head))
            k, v = (
                _project_reference(rows[sample][real], project, weight[head], _slice(bias, head), bias_order)
                for rows, project, weight, bias in (
                    (key, key_projections[index], weights.key, weights.key_bias),
                    (value, value_projections[index], weights.value, weights.value_bias),
                )
            )
            heads.append(_softmax_attention_reference(q, k, v, None))
        outputs.append(F.linear(torch.cat(heads, dim=-1), weights.output, weights.output_bias))
    return torch.stack(outputs)


def _project_reference(
    rows: Tensor, project: PlainProjection, weight: Tensor, bias: Tensor | None, bias_order: str
) -> Tensor:
    """E·(X·W + 1·b) or E·(X·W) + 1·b for one head of one sequence."""
    if bias is None or bias_order == "before_projection":
        return project(F.linear(rows, weight, bias))
    return project(F.linear(rows, weight)) + bias


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
