"""Resampling of E, F and positions to another sequence length.

Axes as in `slots`; rows are slots, or heads and slots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def stretch_matrix(matrix: Float[Tensor, "*rows seq_len"], width: int) -> Float[Tensor, "*rows width"]:
    """Resample the columns of E or F from n positions to m, fewer or more; row sums are unchanged.

    Each row is treated as a step function over n equal parts of the text, and integrated over m equal parts instead:
    column j of the result is the integral of the row over [j·n/m, (j+1)·n/m).
    """
    columns = matrix.shape[-1]
    if width == columns:
        return matrix
    exact = matrix.float() if matrix.device.type == "mps" else matrix.double()  # Apple's GPUs have no float64
    integral = F.pad(exact.cumsum(dim=-1), (1, 0))  # at the n + 1 edges of columns; differences of long sums follow
    edges = torch.arange(width + 1, device=matrix.device) * columns
    whole, part = edges // width, (edges % width).to(exact.dtype) / width
    low, high = integral[..., whole], integral[..., (whole + 1).clamp(max=columns)]
    return torch.lerp(low, high, part.expand_as(low)).diff(dim=-1).to(matrix.dtype)


def resize_positions(
    positions: Float[Tensor, "seq_len embed"], new_seq_len: int, mode: str
) -> Float[Tensor, "new_seq_len embed"]:
    """Resize a table of positions: repeat it periodically (`extend`) or interpolate it (`interpolate`)."""
    if mode == "extend":
        return positions[torch.arange(new_seq_len, device=positions.device) % len(positions)]
    stretched = F.interpolate(positions.float().T[None], size=new_seq_len, mode="linear")[0].T
    return stretched.to(positions.dtype)
