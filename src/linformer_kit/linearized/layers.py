"""Find the layers of an encoder that use transformers' attention interface, by one run on a short input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from linformer_kit.errors import InputError, input_errors

_NAME = "linformer_probe"
_TOKENS = 4


class AttentionLayer(NamedTuple):
    """One attention module.

    Attributes:
        name: Name within the base model, as in `named_modules`.
        module: The module.
        num_heads: h.
        head_dim: d.
        keys: Number of keys in the run.
        local: Whether attention is limited to a sliding window.
    """

    name: str
    module: nn.Module
    num_heads: int
    head_dim: int
    keys: int
    local: bool


_seen: ContextVar[dict[nn.Module, dict[str, Any]]] = ContextVar("seen")


@torch.no_grad()
def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """The attention layers in the order of their calls; a module that is called repeatedly is one layer.

    Raises:
        InputError: with the reason why the model cannot be linearised.
    """
    _check_configuration(model)
    seen: dict[nn.Module, dict[str, Any]] = {}
    token = _seen.set(seen)
    try:
        with _probing(model), input_errors(f"model: expected an encoder, got {type(model).__name__}"):
            inputs, changed = _two_inputs(model)
            before, after = (_first_position(model.base_model(**given)) for given in (inputs, changed))
    finally:
        _seen.reset(token)
    kind = type(model).__name__
    if not seen:
        raise InputError(
            f"model: expected attention through transformers' attention interface, got {kind}, which has its own"
        )
    if torch.equal(before, after):
        raise InputError(f"model: expected an encoder, got {kind}, which has causal attention")
    names = {module: name for name, module in model.base_model.named_modules()}
    return [AttentionLayer(names[module], module, **found) for module, found in seen.items()]


def _check_configuration(model: PreTrainedModel) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model: expected one of transformers, got {type(model).__name__}")
    config, kind = model.config, type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"model: expected an encoder, got {kind}, an encoder with a decoder")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise InputError(f"model: expected an encoder, got {kind}, a decoder by its configuration")
    if len(config.sub_configs) > 1:
        parts = ", ".join(sorted(config.sub_configs))
        raise InputError(f"model: expected an encoder, got {kind}, which has several: {parts}")
    if config.model_type == "linformer" and config.attention == "full":
        found = f"{kind} of this package; linformer convert without --in_place makes it linear"
        raise InputError(f"model: expected an encoder of transformers, got {found}")
    if config.model_type in ("linformer", "linearized"):
        raise InputError(f"model: expected one with full attention, got {kind}, which is a Linformer")
    if model.device.type == "meta":
        raise InputError(f"model: expected one with weights, got {kind} on the meta device")
    if not model._can_set_attn_implementation():
        raise InputError(
            f"model: expected attention through transformers' attention interface, got {kind}, which has its own"
        )


def _two_inputs(model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """An input, and one that differs only at its end."""
    config, name, device = model.config, model.main_input_name, model.device
    if name == "input_ids":
        first = torch.arange(1, _TOKENS + 1, device=device)[None]  # distinct ids other than padding
        first = first + (config.pad_token_id or 0)
        first = first % config.vocab_size
        second = first.clone()
        second[:, -1] = (second[:, -1] + 1) % config.vocab_size
        return {name: first}, {name: second}
    if name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        first = torch.zeros(1, config.num_channels, height, width, device=device, dtype=model.dtype)
        second = first.clone()
        second[..., -1] = 1
        return {name: first}, {name: second}
    raise InputError(f"model: expected one that reads text or images, got {type(model).__name__}, which reads {name}")


def _first_position(outputs: Any) -> Tensor:
    return outputs[0][:, 0]


@contextmanager
def _probing(model: PreTrainedModel) -> Iterator[None]:
    """Run in evaluation mode with an attention function that records its calls; the model is restored afterwards."""
    before, training = model.config._attn_implementation, [module for module in model.modules() if module.training]
    model.eval()
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for module in training:
            module.training = True


def check_weights(module: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Raise an error for attention with terms that linear attention does not compute.

    Raises:
        InputError: with the name of the argument of the attention function.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if arguments.get(name) is not None:
            raise InputError(f"model: expected attention without {name}, got {type(module).__name__} with it")


def _attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **arguments: Any) -> Any:
    check_weights(module, arguments)
    _seen.get()[module] = {
        "num_heads": query.shape[1],
        "head_dim": query.shape[3],
        "keys": key.shape[2],
        "local": arguments.get("sliding_window") is not None,
    }
    return sdpa_attention_forward(module, query, key, value, mask, **arguments)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)
