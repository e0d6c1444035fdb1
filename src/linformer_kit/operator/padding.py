"""Padding. Behind the door of a model, or of an attention used alone, every sequence is right-padded: its real tokens
come first, and `lengths` says how many they are (None: all tokens of all sequences are real).

Masks are `real`: True for a token. Those of other libraries are converted at the door. Axes as in `slots`.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.operator.conditions import values_are_cheap

# Added to positions of padding, so that all numbers differ: ONNX has no stable sort, OpenVINO no integers of 64 bits.
_LAST = 1 << 30
_Maybe = TypeVar("_Maybe", Tensor, Tensor | None)


def right_padded(
    real: Bool[Tensor, "batch seq_len"], *, is_known: bool | None = None
) -> tuple[Int[Tensor, "batch seq_len"] | None, Tensor]:
    """The order that makes sequences right-padded, and their lengths.

    Args:
        real: True for a token, False for padding: on the left, on the right, or in the middle.
        is_known: Whether it is known to be padded on the right only; None: its values are read where that is cheap.

    Returns:
        The order for `take_positions`, None if the sequences are known to be right-padded; and the number of real
        tokens, `[batch]`.
    """
    if is_known is None:
        is_known = values_are_cheap(real) and is_right_padded(real)
    lengths = real.sum(dim=1)
    if is_known:
        return None, lengths
    return (~real * _LAST + torch.arange(real.shape[1], device=real.device)).sort(dim=1).indices, lengths


def is_right_padded(real: Bool[Tensor, "batch seq_len"]) -> bool:
    """Whether no real token follows padding. On an accelerator this waits for all queued work."""
    return bool((real[:, 1:] <= real[:, :-1]).all())


def take_positions(
    hidden: Shaped[Tensor, "batch seq_len *rest"], positions: Int[Tensor, "batch_or_1 taken"]
) -> Shaped[Tensor, "batch taken *rest"]:
    """The given positions of each sequence."""
    # `len`, and any comparison in a trace, would fix the number of sequences of an exported program.
    if not torch.jit.is_tracing() and positions.shape[0] == 1:
        return hidden.index_select(1, positions[0])
    index = positions.view(*positions.shape, *[1] * (hidden.dim() - 2))
    return hidden.gather(1, index.expand(hidden.shape[0], -1, *hidden.shape[2:]))


def pooled(
    hidden: Float[Tensor, "batch seq_len embed"], mask: Shaped[Tensor, "batch seq_len"] | None, how: str
) -> Float[Tensor, "batch embed"]:
    """One vector for each sequence: its first real token (`cls`), or the mean of its real tokens (`mean`).

    `mask` is 0 for padding, anywhere; None: all tokens are real.
    """
    if mask is not None and mask.shape != hidden.shape[:2]:
        raise InputError(f"attention_mask: expected {list(hidden.shape[:2])}, got {list(mask.shape)}")
    if how == "cls":
        first = None if mask is None else (mask != 0).int().argmax(dim=1)
        return hidden[:, 0] if first is None else take_positions(hidden, first[:, None])[:, 0]
    if mask is None:
        return hidden.mean(dim=1)
    real = (mask != 0)[..., None]
    total = hidden.masked_fill(~real, 0.0).sum(dim=1, dtype=torch.float32)
    return (total / real.sum(dim=1).clamp(min=1)).to(hidden.dtype)


def put_back(
    hidden: Shaped[Tensor, "batch seq_len *rest"], order: Int[Tensor, "batch seq_len"] | None
) -> Shaped[Tensor, "batch seq_len *rest"]:
    """Undo `take_positions` with an order of `right_padded`."""
    return hidden if order is None else take_positions(hidden, order.sort(dim=1).indices)


def put_back_weights(
    weights: Float[Tensor, "batch heads query_len columns"],
    order: Int[Tensor, "batch seq_len"] | None,
    *,
    queries: bool = True,
    columns: bool = False,
) -> Float[Tensor, "batch heads query_len columns"]:
    """`put_back` for P̄: for its queries, and for its columns if they are tokens, as in full attention."""
    if order is None:
        return weights
    if queries:
        weights = put_back(weights.transpose(1, 2), order).transpose(1, 2)
    return put_back(weights.movedim(3, 1), order).movedim(1, 3) if columns else weights


def last_tokens(
    hidden: Shaped[Tensor, "batch seq_len *rest"], lengths: Int[Tensor, " batch"] | None, count: int
) -> Shaped[Tensor, "batch count *rest"]:
    """A copy of the last real tokens of right-padded sequences, right-aligned; before these, any others."""
    ends = torch.full((1,), hidden.shape[1], device=hidden.device) if lengths is None else lengths
    return take_positions(hidden, (ends[:, None] + torch.arange(-count, 0, device=hidden.device)).clamp(min=0))


def real_tokens(lengths: Int[Tensor, " batch"], seq_len: int) -> Bool[Tensor, "batch seq_len"]:
    """True for the tokens, False for the padding after them, of sequences that start with `lengths` real tokens."""
    return torch.arange(seq_len, device=lengths.device) < lengths[:, None]


def zero_padding(
    hidden: Float[Tensor, "batch *heads seq_len embed"], lengths: Int[Tensor, " batch"] | None
) -> Float[Tensor, "batch *heads seq_len embed"]:
    """Set padding to zero, by selection: a NaN there reaches neither outputs nor gradients."""
    if lengths is None:
        return hidden
    padding = ~real_tokens(lengths, hidden.shape[-2])[..., None]
    return hidden.masked_fill(padding if hidden.dim() == 3 else padding[:, None], 0.0)


def take_block(tensor: _Maybe, samples: slice, *rows: slice) -> _Maybe:
    """Some rows of some sequences of a tensor, `[batch, rows, …]`, or `[1, …]` for every sequence, or of None."""
    return tensor if tensor is None else tensor[(slice(None) if tensor.shape[0] == 1 else samples, *rows)]
