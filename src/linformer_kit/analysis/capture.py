"""Capture the context mapping of every layer of an encoder while the model runs, without storing it.

Axes: batch, heads, seq_len (n), keys (n, or k slots), head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from linformer_kit.errors import InputError
from linformer_kit.linearized.attention import is_linear, linear_attention, one_for_each_query, pair_mapping
from linformer_kit.linearized.classes import LINEAR_IMPLEMENTATIONS
from linformer_kit.linearized.layers import check_weights
from linformer_kit.operator.attention import LinformerAttention
from linformer_kit.operator.slots import split_heads


class LayerAttention(NamedTuple):
    """Attention of one layer.

    Attributes:
        mapping: P, or P̄ of a Linformer, without dropout; rows and columns of padding are zero.
        real: True at the rows of real tokens.
        query: Q·W_Q by heads, scaled such that the scores are query·keyᵀ; query, key and value are None in linear
            layers.
        key: K·W_K.
        value: V·W_V.
    """

    mapping: Float[Tensor, "batch heads seq_len keys"]
    real: Bool[Tensor, "batch seq_len"]
    query: Float[Tensor, "batch heads seq_len head_dim"] | None = None
    key: Float[Tensor, "batch heads seq_len head_dim"] | None = None
    value: Float[Tensor, "batch heads seq_len head_dim"] | None = None


Visitor = Callable[[int, LayerAttention], None]

_NAME = "linformer_kit_capture"
_visit: ContextVar[Callable[[LayerAttention], None]] = ContextVar("visit")
_real: ContextVar[Tensor | None] = ContextVar("real")


@torch.no_grad()
def visit_attention(model: PreTrainedModel, inputs: Mapping[str, Tensor], visit: Visitor) -> None:
    """Run an encoder and call `visit` with the attention of each layer, one after the other.

    It takes models of this package, and those that use transformers' attention interface, as `linearize` does. One
    layer's weights are held at a time.

    Args:
        model: Encoder in evaluation mode; not changed.
        inputs: Arguments of the model; `attention_mask`, if any, is `[batch, seq_len]`, 1 on real tokens.
        visit: Called with the index of the layer, from 0, and its attention.

    Raises:
        InputError: for an encoder-decoder, a decoder, a model in training mode or with attention of its own, inputs
            without a token, and weights with a NaN.
    """
    if model.training:
        raise InputError("model: expected one in evaluation mode (model.eval()), got one in training")
    for name, tensor in inputs.items():
        if not tensor.numel():
            raise InputError(f"{name}: expected at least one token, got {list(tensor.shape)}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(f"model: expected an encoder, got an encoder-decoder ({model.config.model_type})")
    layers = 0

    def show(attention: LayerAttention) -> None:
        nonlocal layers
        _check(layers, attention, model)
        visit(layers, attention)
        layers += 1

    mask = inputs.get("attention_mask")
    tokens = (_visit.set(show), _real.set(None if mask is None else mask.bool()))
    try:
        with _listening(model):
            model(**inputs)
        if not layers:
            kind = model.config.model_type
            raise InputError(f"model: expected one that uses transformers' attention interface, got a {kind}")
    finally:
        _visit.reset(tokens[0])
        _real.reset(tokens[1])


@contextmanager
def _listening(model: PreTrainedModel) -> Iterator[None]:
    own = [module for module in model.modules() if isinstance(module, LinformerAttention)]
    if own:
        hooks = [module.register_forward_pre_hook(_ask_for_weights, with_kwargs=True) for module in own]
        hooks += [module.register_forward_hook(_show_weights, with_kwargs=True) for module in own]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _ask_for_weights(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    return args, {**kwargs, "need_weights": True}


def _show_weights(
    module: nn.Module, args: tuple, kwargs: dict[str, Any], outputs: tuple[Tensor, Tensor]
) -> tuple[Tensor, None]:
    assert isinstance(module, LinformerAttention)
    query, key, value, padding = args[:4]
    output, weights = outputs
    states: list[Tensor] = []
    if module.projection is None and kwargs.get("projection") is None:  # full attention
        inputs = ((module.q_proj, query), (module.k_proj, key), (module.v_proj, value))
        states = [split_heads(linear(hidden), module.num_heads) for linear, hidden in inputs]
        states[0] = states[0] * states[0].shape[-1] ** -0.5
    real = None if padding is None else ~padding.mask
    _visit.get()(_of_real_tokens(weights, real, *states))
    return output, None


def _attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads seq_len head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys head_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch seq_len heads head_dim"], None]:
    """Attention with the signature of transformers' interface; passes the weights to the visitor."""
    if is_linear(module):
        real = _real.get()
        mask = None if real is None or real.all() else real
        output, weights = linear_attention(module, query, key, value, mask, scaling, need_weights=True, **arguments)
        assert weights is not None
        _visit.get()(_of_real_tokens(weights, real))
        return output, None
    check_weights(module, arguments)
    key, value = (one_for_each_query(heads, query) for heads in (key, value))
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = pair_mapping(query, key, attention_mask)
    _visit.get()(_of_real_tokens(weights, _real.get(), query, key, value))
    return (weights.to(value.dtype) @ value).transpose(1, 2).contiguous(), None


def _of_real_tokens(weights: Tensor, real: Tensor | None, *states: Tensor) -> LayerAttention:
    if real is None:
        real = torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool, device=weights.device)
    elif real.shape != (weights.shape[0], weights.shape[2]):
        raise InputError(
            f"attention_mask: expected {[weights.shape[0], weights.shape[2]]}, the rows of the weights, "
            f"got {list(real.shape)}"
        )
    else:  # columns of padding are zero already
        weights = weights.masked_fill(~real[:, None, :, None], 0.0)
    return LayerAttention(weights, real, *states)


def _check(layer: int, attention: LayerAttention, model: PreTrainedModel) -> None:
    mapping = attention.mapping
    if not mapping.isfinite().all():
        raise InputError(f"model: expected finite numbers, got a NaN or infinity in the attention of layer {layer}")
    pairs = mapping.shape[2] == mapping.shape[3] and attention.real.sum(dim=1).max() > 1
    if layer == 0 and pairs and not mapping.triu(1).any():
        kind = model.config.model_type
        raise InputError(f"model: expected an encoder, got a model with causal attention ({kind})")


AttentionInterface.register(_NAME, _attend)
LINEAR_IMPLEMENTATIONS.add(_NAME)
AttentionMaskInterface.register(_NAME, eager_mask)
