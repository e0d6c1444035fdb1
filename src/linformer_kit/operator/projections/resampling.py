"""Resampling of E, F, tokens and positions to another sequence length.

Axes as in `slots`; rows are slots, or heads and slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from linformer_kit.operator.padding import take_positions


def stretch_matrix(matrix: Float[Tensor, "*rows seq_len"], width: int) -> Float[Tensor, "*rows width"]:
    """Resample the columns of E or F from n positions to m, fewer or more; row sums are unchanged.

    Each row is treated as a step function over n equal parts of the text, and integrated over m equal parts instead:
    column j of the result is the integral over [j·n/m, (j+1)·n/m).
    """
    if width == matrix.shape[-1]:
        return matrix
    return stretch_to_lengths(matrix, torch.full((1,), width, device=matrix.device), width)[0]


def stretch_to_lengths(
    matrix: Float[Tensor, "*rows seq_len"], lengths: Int[Tensor, " batch"], width: int
) -> Float[Tensor, "batch *rows width"]:
    """`stretch_matrix` to the length m of each sequence, followed by columns of zeros.

    A sequence without tokens counts as one with a single token.
    """
    exact = matrix.float() if matrix.device.type == "mps" else matrix.double()  # Apple's GPUs have no float64
    integral = F.pad(exact.cumsum(dim=-1), (1, 0))  # at the n + 1 edges of columns; differences of long sums follow
    count = lengths.clamp(min=1)[:, None]
    edges = torch.minimum(torch.arange(width + 1, device=matrix.device), count) * matrix.shape[-1]
    whole, part = edges // count, (edges % count).to(exact.dtype) / count
    # Positions first: for many sequences it is faster to gather (and in the backward pass to add) whole columns.
    columns = integral.movedim(-1, 0).contiguous()
    low, high = columns[whole], columns[(whole + 1).clamp(max=matrix.shape[-1])]
    sums = torch.lerp(low, high, part.view(*part.shape, *[1] * (matrix.dim() - 1)).expand_as(low))
    return sums.diff(dim=1).to(matrix.dtype).movedim(1, -1)


def stretch_tokens(
    hidden: Float[Tensor, "batch seq_len embed"], lengths: Int[Tensor, " batch_or_1"], width: int
) -> Float[Tensor, "batch width embed"]:
    """Spread the first m tokens of each sequence evenly over n ≥ m positions.

    Position i of n covers the part [i·m/n, (i+1)·m/n) of the text, which overlaps one token or two neighbours, and gets
    their mean, weighted by the overlap. So E·(stretched X) equals E, resampled to m columns by `stretch_matrix`, times
    X; with m = n, stretched X is X itself.

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
    """Resize a table of positions: repeat it periodically (`extend`) or interpolate it (`interpolate`)."""
    if mode == "extend":
        return positions[torch.arange(new_seq_len, device=positions.device) % len(positions)]
    stretched = F.interpolate(positions.float().T[None], size=new_seq_len, mode="linear")[0].T
    return stretched.to(positions.dtype)
