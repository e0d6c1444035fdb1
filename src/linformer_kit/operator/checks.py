"""Checks of `LinformerAttention`: arguments of its constructor and of a call.

Axes as in `slots`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import LONGEST
from linformer_kit.operator.projections import BIAS_ORDERS, SequenceProjection, is_integer


def check_sizes(embed_dim: Any, num_heads: Any, dropout: Any, bias_order: Any) -> None:
    """Reject sizes that are not positive integers, heads that do not divide the width, and unknown names."""
    if not isinstance(embed_dim, int) or embed_dim < 1:
        raise InputError(f"embed_dim: expected a positive integer, got {embed_dim!r}")
    if not isinstance(num_heads, int) or num_heads < 1 or embed_dim % num_heads:
        raise InputError(f"num_heads: expected a divisor of embed_dim {embed_dim}, got {num_heads!r}")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"dropout: expected a number from 0 up to but not 1, got {dropout!r}")
    if bias_order not in BIAS_ORDERS:
        raise InputError(f"bias_order: expected one of {', '.join(BIAS_ORDERS)}, got {bias_order!r}")


def check_count(name: str, value: Any) -> None:
    """Reject a number of tokens that is not an integer from 0 to `LONGEST`."""
    if not is_integer(value) or not 0 <= value <= LONGEST:
        raise InputError(f"{name}: expected an integer from 0 to {LONGEST:,}, got {value!r}")


def check_as_many_queries(queries: int, positions: int) -> None:
    """Reject, with a sliding window, queries that are not those of the same positions as the keys."""
    if queries != positions:
        raise InputError(f"query, key: expected one length with sliding_window, got {queries} and {positions}")


def check_module(
    projection: Any,
    max_seq_len: int | None,
    sharing: str | None,
    shorter_input: str | None,
    initializer: str | None,
) -> None:
    """Reject arguments that contradict the projection module beside them; defaults count as unset."""
    if not isinstance(projection, SequenceProjection):
        raise InputError(f"projection: expected a name, a projection module or None, got {type(projection).__name__}")
    for name, value, own in (
        ("max_seq_len", max_seq_len, projection.seq_len),
        ("sharing", sharing, projection.sharing),
        ("shorter_input", shorter_input, projection.shorter_input),
        ("projection_initializer", initializer, getattr(projection, "initializer", None)),
    ):
        if value not in (None, own):
            raise InputError(f"{name}: expected {own!r}, as the projection has, got {value!r}")


def reject_masks_over_pairs(attn_mask: Any, is_causal: Any) -> None:
    """Reject masks over pairs of positions: each slot mixes all positions, so such a mask would leak."""
    if attn_mask is not None or is_causal:
        raise InputError(
            f"{'is_causal: expected False' if attn_mask is None else 'attn_mask: expected None'}: each slot mixes "
            "all positions, so a mask over pairs of them would leak what it hides; for padding use key_padding_mask"
        )


def check_dimensions(*sequences: Tensor) -> None:
    """Reject query, key and value of which some have a batch and others none."""
    if len({sequence.dim() for sequence in sequences}) > 1:
        got = ", ".join(str(list(sequence.shape)) for sequence in sequences)
        raise InputError(f"query, key, value: expected all with a batch or all without, got {got}")


def check_keys(key: Tensor, value: Tensor, embed_dim: int) -> None:
    """Reject keys and values of another width, of different lengths, or without positions."""
    check_width("key", key, embed_dim)
    check_width("value", value, embed_dim)
    if key.shape != value.shape:
        raise InputError(
            f"key, value: expected one batch size and one length, got {list(key.shape)} and {list(value.shape)}"
        )
    if not torch.compiler.is_exporting() and key.shape[1] == 0:
        raise InputError("key: expected at least one position, got none")


def check_query(query: Tensor, key: Tensor, embed_dim: int) -> None:
    """Reject queries of another width or batch size."""
    check_width("query", query, embed_dim)
    if query.shape[0] != key.shape[0]:
        raise InputError(f"query, key: expected one batch size, got {list(query.shape)} and {list(key.shape)}")


def check_width(name: str, tensor: Tensor, embed_dim: int) -> None:
    """Reject a tensor that is not a batch of sequences of this width."""
    if tensor.dim() != 3 or tensor.shape[-1] != embed_dim:
        raise InputError(f"{name}: expected [batch, length, {embed_dim}], got {list(tensor.shape)}")


def check_padding_mask(mask: Any, key: Tensor) -> None:
    """Reject a mask that is not bool or not of the shape of the keys."""
    if not isinstance(mask, Tensor):
        raise InputError(f"key_padding_mask: expected a tensor or None, got {type(mask).__name__}")
    if mask.dtype != torch.bool or mask.shape != key.shape[:2]:
        raise InputError(
            f"key_padding_mask: expected bool {list(key.shape[:2])}, True where padded, "
            f"got {mask.dtype} {list(mask.shape)}"
        )
