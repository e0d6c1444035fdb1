"""Linformer attention through transformers' attention interface: keys and values arrive by heads, W_K and W_V applied.

Axes: batch, heads, seq_len (n), head_dim, slots (k).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.utils import output_capturing

from linformer_kit.errors import InputError
from linformer_kit.linearized.layers import check_weights
from linformer_kit.operator.attention import Projects, project
from linformer_kit.operator.drop_in import padding_from_scores
from linformer_kit.operator.padding import Padding, zero_padding
from linformer_kit.operator.projections import HeadMap, Inputs, SequenceProjection
from linformer_kit.operator.slots import attend_slots, merge_heads
from linformer_kit.operator.values import has_values

IMPLEMENTATION = "linformer"
# Attributes of attention modules:
WINDOW = "linformer_window"  # tokens that each query sees besides the slots
GLOBAL = "linformer_global_tokens"  # tokens at the start that each query sees besides the slots
GROUPS = "linformer_groups"  # heads by number of slots, if E and F are shared over layers
RECORDED = "linformer_recorded"  # whether the last forward pass recorded its weights
ATTRIBUTE = "linformer"  # E and F, `tokens_as_slots` for full attention, or None for a local layer
OWNER = "linformer_owner"  # the module that holds the E and F shared by all layers


def linear_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads seq_len head_dim"],
    key: Float[Tensor, "batch key_heads seq_len head_dim"],
    value: Float[Tensor, "batch key_heads seq_len head_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    need_weights: bool = False,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch seq_len heads head_dim"], Float[Tensor, "batch heads seq_len slots"] | None]:
    """softmax(Q·(E·K)ᵀ·scaling)·(F·V), with E and F of the module (equation 7).

    Args:
        module: The attention layer that calls this function.
        query: Q·W_Q by heads.
        key: K·W_K by heads.
        value: V·W_V by heads.
        attention_mask: A mask from `mask`, or 0 at real tokens and negative at padding, `[batch, 1, 1, seq_len]`.
        scaling: Scale of the scores; None: 1/√head_dim.
        dropout: Dropout on the context mapping.
        need_weights: Whether to return P̄; it is also returned if transformers records the attentions of the model.
        arguments: All other arguments of the layer, such as `sliding_window` of local layers.

    Returns:
        The output, with heads as the second-to-last axis, and P̄ or None; for a local layer, P.

    Raises:
        InputError: for a mask over pairs of positions, attention weights with an unsupported term, a module without E
            and F, and a sequence that is too long for them.
    """
    projection = projection_of(module)
    need_weights = need_weights or _is_recorded(module, arguments)
    if projection is None:
        if need_weights:
            return _attend_pairs(query, key, value, attention_mask, scaling, dropout)
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **arguments)
    check_weights(module, arguments)
    padding = padding_of(attention_mask, key)
    key, value = (one_for_each_query(heads, query) for heads in (key, value))
    head_dim = query.shape[-1]
    if scaling is not None and scaling != head_dim**-0.5:
        query = query * (scaling * head_dim**0.5)
    mapped = HeadMap(None, query.shape[1])  # W_K and W_V have been applied
    key, value = (zero_padding(merge_heads(heads), padding) for heads in (key, value))
    inputs = Inputs(key, value, mapped, mapped, None if padding is None else Padding.of(padding))
    slots = project(
        projection,
        inputs,
        getattr(module, GROUPS, None),
        sliding_window=getattr(module, WINDOW, 0),
        global_tokens=getattr(module, GLOBAL, 0),
    )
    near = slots[0].neighbours
    if near is not None:
        query = near.ordered_heads(query)
    context, weights = attend_slots(query, slots, dropout=dropout, need_weights=need_weights)
    if near is not None:
        context = near.put_heads_back(context)
    return context.transpose(1, 2).contiguous(), weights


def projection_of(module: nn.Module) -> Projects | None:
    """E and F of an attention layer, looked up at every call so that a replacement is used; None for local layers.

    Those of a layer that keeps full attention are `tokens_as_slots`.

    Raises:
        InputError: for a layer of a model that is not linearised.
    """
    owner = _owner(module)
    if not hasattr(owner, ATTRIBUTE):
        kind = type(module).__name__
        raise InputError(f"model: expected the linearised one that AutoModel loads, got {kind} without E and F")
    return getattr(owner, ATTRIBUTE)


def is_linear(module: nn.Module) -> bool:
    """Whether an attention layer has E and F."""
    return isinstance(getattr(_owner(module), ATTRIBUTE, None), SequenceProjection)


def _owner(module: nn.Module) -> nn.Module:
    return module.__dict__.get(OWNER, module)


def _is_recorded(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether transformers records attention weights in this forward pass.

    Most models pass `output_attentions` to their layers; all of them use the collector. In the backward pass,
    activation checkpointing runs a layer again without a collector: then the first answer is used again.
    """
    told = bool(arguments.get("output_attentions"))
    collector = output_capturing._active_collector
    if torch.compiler.is_compiling():  # a separately compiled layer cannot read a context variable
        return told or (collector.compiling and "attentions" in (collector.get() or ()))
    if (collected := collector.get()) is None:
        return told or module.__dict__.get(RECORDED, False)
    told = told or "attentions" in collected
    if module.training:
        module.__dict__[RECORDED] = told
    return told


def _attend_pairs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Full attention with its weights P, for layers with a sliding window."""
    key, value = (one_for_each_query(heads, query) for heads in (key, value))
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = pair_mapping(query, key, mask).to(value.dtype)
    return (nn.functional.dropout(weights, dropout) @ value).transpose(1, 2).contiguous(), weights


def pair_mapping(
    query: Float[Tensor, "batch heads query_len head_dim"],
    key: Float[Tensor, "batch heads seq_len head_dim"],
    mask: Tensor | None,
) -> Float[Tensor, "batch heads query_len seq_len"]:
    """P in float32, softmax(query·keyᵀ), of scaled queries; the mask over pairs is bool (True: visible) or additive."""
    scores = query @ key.mT
    if mask is not None:
        mask = mask[..., : key.shape[2]]
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1, dtype=torch.float32)


def one_for_each_query(
    heads: Float[Tensor, "batch key_heads seq_len head_dim"], query: Float[Tensor, "batch heads query_len head_dim"]
) -> Float[Tensor, "batch heads seq_len head_dim"]:
    """Repeat keys or values of grouped-query attention for each query head; others are returned without a copy."""
    repeats = query.shape[1] // heads.shape[1]
    return heads if repeats == 1 else heads.repeat_interleave(repeats, dim=1)


def padding_of(
    attention_mask: Tensor | None, key: Float[Tensor, "batch key_heads seq_len head_dim"]
) -> Bool[Tensor, "batch seq_len"] | None:
    """The padding mask, True where padded, from the mask that layers receive; one row for each text.

    Raises:
        InputError: for a mask over pairs of positions, a mask of another shape, and one that hides tokens partly.
    """
    if attention_mask is None:
        return None
    mask = attention_mask
    if mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1:
        mask = mask[:, 0, 0]
    if mask.dim() != 2:
        raise InputError(
            f"attention_mask: expected [batch, seq_len], 1 on real tokens, got {list(attention_mask.shape)}: each slot "
            "mixes all positions, so a mask over pairs of them would leak what it hides"
        )
    if not torch.compiler.is_compiling():  # traced code must not depend on sizes
        batch, seq_len = key.shape[0], key.shape[2]
        if mask.shape[0] not in (1, batch) or mask.shape[1] != seq_len:
            raise InputError(f"attention_mask: expected [{batch}, {seq_len}], got {list(attention_mask.shape)}")
    padding = padding_from_scores("attention_mask", mask) if mask.is_floating_point() else mask == 0
    return padding.expand(key.shape[0], -1)


def mask(*, attention_mask: Tensor | None = None, mask_function: Any = None, **arguments: Any) -> Tensor | None:
    """The mask for layers: `[batch, seq_len]`, True on real tokens, None if all are; with a window, sdpa's mask."""
    if mask_function is not bidirectional_mask_function:
        pairs = sdpa_mask(attention_mask=attention_mask, mask_function=mask_function, **arguments)
        of_all = pairs is not None and arguments.get("local_size") is None and has_values(pairs)
        # Gemma's encoders turn a causal mask into one in which every query sees the same tokens.
        return pairs[:, 0, 0] if of_all and (pairs == pairs[:, :, :1]).all() else pairs
    if attention_mask is not None and has_values(attention_mask) and attention_mask.all():
        return None
    return attention_mask


AttentionInterface.register(IMPLEMENTATION, linear_attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)
