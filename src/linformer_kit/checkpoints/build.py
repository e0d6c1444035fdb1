"""From renamed weights and a configuration to a model: what all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from linformer_kit.configuration import LinformerConfig
from linformer_kit.errors import InputError
from linformer_kit.modeling import LinformerPreTrainedModel


def build_model(
    model_class: type[LinformerPreTrainedModel],
    config: LinformerConfig,
    weights: Mapping[str, Tensor],
    source: str,
    *,
    new_projections: bool,
) -> LinformerPreTrainedModel:
    """A model with these weights, and with `new_projections` E and F that start as in a new model.

    Raises:
        InputError: for a weight that is missing, left over or of another shape.
    """
    model = model_class(config)
    wanted = model.state_dict()
    for name, tensor in weights.items():
        if name not in wanted:
            raise InputError(f"{source}: expected weights of {model_class.__name__}, got {name} as well")
        if tensor.shape != wanted[name].shape:
            raise InputError(f"{source}: expected {name} of {list(wanted[name].shape)}, got {list(tensor.shape)}")
    new = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    if new_projections:
        new |= {name for name in wanted if ".projection." in name}
    missing = sorted(wanted.keys() - weights.keys() - new)
    if missing:
        raise InputError(f"{source}: expected {missing[0]} for {model_class.__name__}, got no such weight")
    model.load_state_dict(dict(weights), strict=False)
    return model.eval()


def linformer_config(source: str, fields: dict[str, Any], overrides: Mapping[str, Any]) -> LinformerConfig:
    """The configuration by what the source has and what was asked for; k is at most n where nobody chose it.

    Raises:
        InputError: for a field that does not fit.
    """
    longest = fields["max_position_embeddings"]
    default = {"projected_dim": min(LinformerConfig().projected_dim, longest)}
    try:
        return LinformerConfig(**{**default, **fields, **overrides})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
