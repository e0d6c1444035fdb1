"""Build models from renamed weights and a configuration; shared by all formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from linformer_cli.errors import InputError, input_errors
from linformer_kit.interop.loading import LOADED, Loaded
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.modeling import LinformerPreTrainedModel


def build_model(
    model_class: type[LinformerPreTrainedModel],
    config: LinformerConfig,
    weights: Mapping[str, Tensor],
    source: str,
    *,
    left_out: list[str],
    new_projections: bool = False,
) -> LinformerPreTrainedModel:
    """Build a model with these weights; with `new_projections`, E and F are initialised as in a new model.

    `left_out` has the names of the source's weights that the model has no place for; `loaded` returns them.
    """
    model = model_class(config)
    new = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    kept = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in new or (new_projections and ".projection." in name)
    }
    with input_errors(f"{source}: expected weights of {model_class.__name__}"):
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                raise ValueError(f"got NaN or infinite numbers in {name}")
        model.load_state_dict({**kept, **weights})
    setattr(model, LOADED, Loaded(frozenset(), left_out))
    return model.eval()


def build_config(source: str, fields: Mapping[str, Any]) -> LinformerConfig:
    """The configuration with these fields; the default k is at most n."""
    longest = fields["max_position_embeddings"]
    default = {"projected_dim": min(LinformerConfig().projected_dim, longest)} if isinstance(longest, int) else {}
    try:
        return LinformerConfig(**{**default, **fields})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
