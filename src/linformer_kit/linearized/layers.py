"""Find the layers of an encoder that use transformers' attention interface, by one run on a short input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from linformer_cli.errors import InputError, input_errors
from linformer_kit.internals import (
    accepts_attention_functions,
    attention_implementation,
    sdpa_attention_forward,
    sdpa_mask,
)
from linformer_kit.models.configuration import LinformerConfig

_NAME = "linformer_probe"
_TOKENS = 4
_EXPECTED = (
    "attention through transformers' attention interface (that of BERT, RoBERTa, XLM-RoBERTa, DistilBERT, "
    "ELECTRA, ALBERT, ModernBERT and others)"
)


class AttentionLayer(NamedTuple):
    """One attention module.

    Attributes:
        name: Name within the base model, as in `named_modules`.
        num_heads: h.
        head_dim: d.
        keys: Number of keys in the run.
        local: Whether attention is limited to a sliding window.
    """

    name: str
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
            model.base_model(**_short_input(model))
    finally:
        _seen.reset(token)
    kind = type(model).__name__
    if not seen:
        raise InputError(f"model: expected {_EXPECTED}, got {kind}, which has its own")
    names = {module: name for name, module in model.base_model.named_modules()}
    return [AttentionLayer(names[module], **sizes) for module, sizes in seen.items()]


def _check_configuration(model: PreTrainedModel) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model: expected one of transformers, got {type(model).__name__}")
    config, kind = model.config, type(model).__name__
    ours = isinstance(config, LinformerConfig) and not config.has_slots
    linear = ' of this package; from_pretrained(…, attention="linformer") makes it linear'
    longer = ", which is a Linformer (`linformer resize` makes it longer)"
    for is_so, expected, got in (
        (len(config.sub_configs) > 1, "an encoder", f", which has several: {', '.join(sorted(config.sub_configs))}"),
        (ours, "an encoder of transformers", linear),
        (config.model_type in ("linformer", "linearized"), "one with full attention", longer),
        (not accepts_attention_functions(model), _EXPECTED, ", which has its own"),
        (model.device.type == "meta", "one with weights", " on the meta device"),
    ):
        if is_so:
            raise InputError(f"model: expected {expected}, got {kind}{got}")


def _short_input(model: PreTrainedModel) -> dict[str, Tensor]:
    config, name, device = model.config, model.main_input_name, model.device
    if name == "input_ids":
        tokens = torch.arange(1, _TOKENS + 1, device=device)[None]  # distinct ids other than padding
        return {name: (tokens + (config.pad_token_id or 0)) % config.vocab_size}
    if name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {name: torch.zeros(1, config.num_channels, height, width, device=device, dtype=model.dtype)}
    raise InputError(f"model: expected one that reads text or images, got {type(model).__name__}, which reads {name}")


@contextmanager
def _probing(model: PreTrainedModel) -> Iterator[None]:
    """Run in evaluation mode with an attention function that records its calls; the model is restored afterwards."""
    before, training = attention_implementation(model), [module for module in model.modules() if module.training]
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


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> Any:
    check_weights(module, arguments)
    if _is_causal(module, attention_mask, arguments.pop("is_causal", None)):
        raise ValueError(f"its {type(module).__name__} has causal attention")
    _seen.get()[module] = {
        "num_heads": query.shape[1],
        "head_dim": query.shape[3],
        "keys": key.shape[2],
        "local": arguments.get("sliding_window") is not None,
    }
    return sdpa_attention_forward(module, query, key, value, attention_mask, is_causal=False, **arguments)


def _is_causal(module: nn.Module, mask: Tensor | None, told: bool | None) -> bool:
    """Whether the mask hides all later positions or, without a mask, the caller or the module says causal.

    Outputs of two inputs would not show it: a mixture of experts rounds differently, and small models in bfloat16 lose
    the difference.
    """
    if mask is None:
        return is_causal_without_mask(module, told)
    hidden = ~mask if mask.dtype == torch.bool else mask < torch.finfo(mask.dtype).min / 2
    queries, keys = mask.shape[-2:]
    later = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(1)
    return queries > 1 and bool(hidden[..., later].all())


def is_causal_without_mask(module: nn.Module, told: bool | None) -> bool:
    """Whether `sdpa` computes causal attention for a layer that gives no mask; `told` is its argument `is_causal`."""
    return bool(getattr(module, "is_causal", True) if told is None else told)


def _whole_mask(**arguments: Any) -> Tensor | None:
    """The mask of sdpa, also where sdpa would need none because it knows a causal or a full one."""
    return sdpa_mask(**arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _whole_mask)
