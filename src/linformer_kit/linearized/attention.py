"""Linformer attention through transformers' attention interface: keys and values arrive by heads, W_K and W_V applied.

Axes: batch, heads, seq_len (n), head_dim, slots (k).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from linformer_cli.errors import InputError
from linformer_kit.internals import bidirectional_mask_function, is_recorded
from linformer_kit.linearized.layers import check_weights
from linformer_kit.linearized.windows import (
    WindowMask,
    one_for_each_query,
    scaled,
    window_attention,
    window_mask,
)
from linformer_kit.operator.attention import Layout, make_slots
from linformer_kit.operator.conditions import has_values, is_transformed
from linformer_kit.operator.drop_in import real_from_scores
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.padding import (
    is_right_padded,
    put_back,
    put_back_weights,
    right_padded,
    take_positions,
)
from linformer_kit.operator.projections import FullAttention, SharedProjection, Tokens, inside
from linformer_kit.operator.slots import ForwardPass, attend_slots

IMPLEMENTATION = "linformer"
_RIGHT_PADDED = "_linformer_right_padded"  # attribute of a mask for all layers of a forward pass: it was looked at
LAYER = "linformer"  # attribute of an attention module: the state of the layer; of the base model: a shared E and F


class LocalAttention(nn.Module):
    """State of a layer that keeps the attention that it had, which is limited to a window."""


class SharedLayer(nn.Module):
    """State of a linear layer that shares E and F with all others, which belong to the base model.

    `projected_dim` is k of this layer, or of each of its heads.
    """

    def __init__(self, base: nn.Module, projected_dim: int | list[int]) -> None:
        super().__init__()
        self.projection, self.projected_dim = SharedProjection(base, LAYER), projected_dim


def linear_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch key_heads seq_len head_dim"],
    value: Float[Tensor, "batch key_heads seq_len head_dim"],
    attention_mask: WindowMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch query_len heads head_dim"], Float[Tensor, "batch heads query_len slots"] | None]:
    """softmax(Q·(E·K)ᵀ·scaling)·(F·V), with E and F of the module (equation 7).

    Args:
        module: The attention layer that calls this function.
        query: Q·W_Q by heads; `key` and `value` likewise.
        attention_mask: A mask from `mask`, or 0 at real tokens and negative at padding, `[batch, 1, 1, seq_len]`.
        scaling: Scale of the scores; None: 1/√head_dim.
        dropout: Dropout on the context mapping.
        arguments: All other arguments of the layer, such as `sliding_window` of local layers.

    Returns:
        The output, with heads as the second-to-last axis; and P̄ if transformers records the attentions of the model,
        or None; for a local layer, P.

    Raises:
        InputError: for a mask over pairs of positions, attention weights with an unsupported term, other keys than
            those of the queries' tokens, a module without E and F, and a sequence that is too long for them.
    """
    layer: Any = _layer_of(module)
    if isinstance(layer, LocalAttention):
        return window_attention(module, query, key, value, attention_mask, scaling, dropout, **arguments)
    need_weights = is_recorded(arguments)
    check_weights(module, arguments)
    if key.shape[2] != query.shape[2]:  # slots and windows of the text would be those of the vectors before it
        expected = f"none with linear attention, which needs one key for each of {query.shape[2]} tokens"
        raise InputError(f"past_key_values: expected {expected}, got {key.shape[2]} keys (prefix tuning, or a cache)")
    order, lengths = None, None  # the order makes the tokens right-padded, of these lengths
    if (real := real_of(attention_mask, key)) is not None:
        is_known = not is_transformed() and getattr(attention_mask, _RIGHT_PADDED, False)
        order, lengths = right_padded(real, is_known=is_known or None)
    shared, window = getattr(layer, "projection", None), getattr(layer, "sliding_window", 0)
    key, value = (_in_order(one_for_each_query(heads, query), order) for heads in (key, value))
    if window:
        query = _in_order(query, order)
    query = scaled(query, scaling)
    forward_pass = ForwardPass(choose(key), lengths)
    projection = layer if shared is None else shared.module
    dims = inside(projection).checked_slots(None if shared is None else layer.projected_dim, key.shape[1])
    layout = Layout(dims, window, getattr(layer, "global_tokens", 0))
    slots = make_slots(projection, Tokens(key, value, True, forward_pass), layout)
    context, weights = attend_slots(query, slots, forward_pass.kernels, dropout=dropout, need_weights=need_weights)
    if weights is not None:
        weights = put_back_weights(weights, order, queries=window > 0, columns=isinstance(layer, FullAttention))
    context = context.transpose(1, 2)
    return (put_back(context, order) if window else context).contiguous(), weights


def _in_order(heads: Tensor, order: Tensor | None) -> Tensor:
    """Queries, keys or values by heads with their positions in this order; None: as they are."""
    return heads if order is None else take_positions(heads.transpose(1, 2), order).transpose(1, 2)


def _layer_of(module: nn.Module) -> nn.Module:
    """The state of an attention layer, looked up at every call so that a replacement is used."""
    if not hasattr(module, LAYER):
        kind = type(module).__name__
        raise InputError(f"model: expected the linearised one that AutoModel loads, got {kind} without E and F")
    return getattr(module, LAYER)


def real_of(
    attention_mask: WindowMask | Tensor | None, key: Float[Tensor, "batch key_heads seq_len head_dim"]
) -> Bool[Tensor, "batch seq_len"] | None:
    """The mask, True for a token, from the mask that layers receive; one row for each text.

    Raises:
        InputError: for a mask over pairs of positions, a mask of another shape, and one that hides tokens partly.
    """
    if attention_mask is None:
        return None
    mask = attention_mask.bias if isinstance(attention_mask, WindowMask) else attention_mask
    given = list(mask.shape)
    if mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1:
        mask = mask[:, 0, 0]
    if mask.dim() != 2:
        raise InputError(
            f"attention_mask: expected [batch, seq_len], 1 on real tokens, got {given}: each slot "
            "mixes all positions, so a mask over pairs of them would leak what it hides"
        )
    if not torch.compiler.is_compiling():  # traced code must not depend on sizes
        batch, seq_len = key.shape[0], key.shape[2]
        if mask.shape[0] not in (1, batch) or mask.shape[1] != seq_len:
            raise InputError(f"attention_mask: expected [{batch}, {seq_len}], got {given}")
    real = real_from_scores("attention_mask", mask) if mask.is_floating_point() else mask != 0
    return real.expand(key.shape[0], -1)


def mask(
    *, attention_mask: Tensor | None = None, mask_function: Any = None, **arguments: Any
) -> WindowMask | Tensor | None:
    """The mask for layers: `[batch, seq_len]`, True on real tokens, None if all are; with a window, `window_mask`'s."""
    if mask_function is not bidirectional_mask_function:
        pairs = window_mask(attention_mask=attention_mask, mask_function=mask_function, **arguments)
        if isinstance(pairs, WindowMask):
            return pairs
        if pairs is None or arguments.get("local_size") is not None or not has_values(pairs):
            return pairs
        # Gemma's encoders turn a causal mask into one in which every query sees the same tokens.
        return pairs[:, 0, 0] if (pairs == pairs[:, :, :1]).all() else pairs
    if attention_mask is None or is_transformed():
        return attention_mask
    readable = has_values(attention_mask)  # not while a CUDA graph is captured
    if readable and attention_mask.all():
        return None
    setattr(attention_mask, _RIGHT_PADDED, readable and is_right_padded(attention_mask != 0))
    return attention_mask


AttentionInterface.register(IMPLEMENTATION, linear_attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)
