"""Numbers of slots (for all heads, for each head, for each layer), and other sequence lengths for E, F and positions.

Axes as in `slots`; rows are slots, or heads and slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linformer_cli.errors import InputError, check_choice, check_input
from linformer_cli.settings import ResizeMode


def check_resize(seq_len: int, new_seq_len: int, mode: str, *, least: int = 1) -> None:
    """Reject an unknown mode, `extend` to fewer positions, and `interpolate` to fewer than `least`.

    Raises:
        InputError: with the allowed modes or lengths.
    """
    check_choice("mode", mode, get_args(ResizeMode))
    least = seq_len if mode == "extend" else least
    if not is_integer(new_seq_len) or new_seq_len < least:
        raise InputError(f"seq_len: expected at least {least} for mode {mode}, got {new_seq_len!r}")


def slots_by_head(
    projected_dim: int | Sequence[int], num_heads: int, *, limit: int | None = None, limited_by: str = ""
) -> tuple[int, ...]:
    """The number of slots of each head.

    Raises:
        InputError: for anything but an integer from 1 to limit (None: no limit), or one for each head.
    """
    dims: list[Any] = list(projected_dim) if isinstance(projected_dim, (list, tuple)) else [projected_dim] * num_heads
    if len(dims) != num_heads:
        raise InputError(f"projected_dim: expected one number for each of {num_heads} heads, got {len(dims)}")
    for dim in dims:
        if not is_integer(dim) or dim < 1 or (limit is not None and dim > limit):
            expected = "a positive integer" if limit is None else f"1 to {limit} ({limited_by})"
            raise InputError(f"projected_dim: expected {expected}, got {dim!r}")
    return tuple(dims)


def each_dim(projected_dim: Any, change: Callable[[Any], Any] = lambda dim: dim) -> Any:
    """Apply a function to k, or to each number in lists or tuples of k for layers and heads, which become lists."""
    if isinstance(projected_dim, (list, tuple)):
        return [each_dim(dim, change) for dim in projected_dim]
    return change(projected_dim)


def largest_dim(projected_dim: Any) -> int:
    """The largest k of all layers and heads."""
    return max(map(largest_dim, projected_dim)) if isinstance(projected_dim, list) else projected_dim


def check_positive(name: str, value: Any) -> None:
    """Raise an `InputError` for anything but a positive integer."""
    check_input(is_integer(value) and value > 0, name, "a positive integer", value)


def is_integer(value: Any) -> bool:
    """Whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


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
