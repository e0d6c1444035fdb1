"""Checks of the models' inputs: shapes, types and ranges of ids.

Axes: batch, seq_len (n).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.conditions import has_values, require_in_trace, values_are_cheap


def check_inputs(
    config: LinformerConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
) -> None:
    """Refuse inputs of the wrong shape, type or length for the configuration, and ids out of range."""
    if input_ids is not None and inputs_embeds is not None:
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got both")
    if input_ids is not None:
        shape = input_ids.shape
    elif inputs_embeds is not None:
        shape = inputs_embeds.shape[:-1]
    else:
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got neither")
    if len(shape) != 2:
        raise InputError(f"input_ids, inputs_embeds: expected [batch, sequence] as first dimensions, got {list(shape)}")
    if inputs_embeds is not None and (
        not inputs_embeds.is_floating_point() or inputs_embeds.shape[-1] != config.hidden_size
    ):
        raise InputError(
            f"inputs_embeds: expected {[*shape, config.hidden_size]} of floating point, "
            f"got {list(inputs_embeds.shape)} of {inputs_embeds.dtype}"
        )
    if not torch.compiler.is_exporting() and shape[1] > config.max_position_embeddings:
        raise InputError(
            "sequence length: expected at most max_position_embeddings "
            f"{config.max_position_embeddings}, got {shape[1]}"
        )
    if attention_mask is not None:
        check_mask(attention_mask, shape)
    if token_type_ids is not None:
        _check_token_types(token_type_ids, config.type_vocab_size)
    for name, ids in (("input_ids", input_ids), ("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None:
            check_integers(name, ids, (1, shape[1]) if name == "position_ids" and len(ids) == 1 else shape)
    check_ids("input_ids", input_ids, config.vocab_size)
    check_ids("position_ids", position_ids, config.max_position_embeddings)


def _check_token_types(token_type_ids: Tensor, type_vocab_size: int) -> None:
    """Check the range of token types; a model without token types accepts only 0, which tokenizers may return."""
    if type_vocab_size:
        check_ids("token_type_ids", token_type_ids, type_vocab_size)
    # Also on an accelerator: nothing else would raise an error, and a second text would count as part of the first.
    elif not has_values(token_type_ids):
        require_in_trace((token_type_ids == 0).all(), "token_type_ids: expected only 0 because type_vocab_size is 0")
    elif (token_type_ids != 0).any():
        raise InputError("token_type_ids: expected None or only 0 because type_vocab_size is 0, got other types")


def check_mask(attention_mask: Tensor, shape: Sequence[int]) -> None:
    """Check the shape; a float mask must not be an additive one (0 on real tokens)."""
    if attention_mask.shape != tuple(shape):
        raise InputError(
            f"attention_mask: expected {list(shape)}, 1 on real tokens and 0 on padding, "
            f"got {list(attention_mask.shape)}"
        )
    # Also on an accelerator: float masks are rare, and an inverted mask raises no error later.
    if not attention_mask.is_floating_point() or not attention_mask.numel():
        return
    if not has_values(attention_mask):
        fits = ((attention_mask == 0) | (attention_mask == 1)).all() & attention_mask.any()
        require_in_trace(fits, "attention_mask: expected 1 on real tokens and 0 on padding in floating point")
    else:
        others = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
        if len(others) or not attention_mask.any():  # only zeros: an additive mask without padding
            raise InputError(
                "attention_mask: expected 1 on real tokens and 0 on padding in floating point, "
                f"got {f'{others[0].item():g}' if len(others) else 'only 0'}"
            )


def check_integers(name: str, ids: Tensor, shape: Sequence[int]) -> None:
    """Refuse ids that are not integers of this shape."""
    if ids.dtype not in (torch.int32, torch.int64) or ids.shape != tuple(shape):
        raise InputError(
            f"{name}: expected {list(shape)} of torch.int64 or torch.int32, got {list(ids.shape)} of {ids.dtype}"
        )


def check_ids(name: str, ids: Tensor | None, limit: int, *, ignored: int | None = None) -> None:
    """Check the range of ids if reading their values is cheap; accelerators have their own check."""
    if ids is None or not values_are_cheap(ids):
        return
    ids = ids if ignored is None else ids[ids != ignored]
    if ids.numel() == 0:
        return
    low, high = ids.min().item(), ids.max().item()
    if low < 0 or high >= limit:
        raise InputError(f"{name}: expected ids from 0 to {limit - 1}, got {low if low < 0 else high}")
