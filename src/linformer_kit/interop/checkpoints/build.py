"""From renamed weights and a configuration to a model: what all formats share."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from linformer_kit.errors import InputError, input_errors
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.modeling import LinformerPreTrainedModel
from linformer_kit.settings import ResizeMode


class Converted(NamedTuple):
    """A model, the names of what its source has and it has not, and whether its E and F are the source's."""

    model: Any
    left_out: list[str]
    learned: bool = False


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
        InputError: for a weight that is missing, left over, of another shape or not of finite numbers.
    """
    model = model_class(config)
    wanted = model.state_dict()
    for name, tensor in weights.items():
        if name not in wanted:
            raise InputError(f"{source}: expected weights of {model_class.__name__}, got {name} as well")
        if tensor.shape != wanted[name].shape:
            raise InputError(f"{source}: expected {name} of {list(wanted[name].shape)}, got {list(tensor.shape)}")
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise InputError(f"{source}: expected finite floating-point numbers in {name}, got others")
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
    made = {**fields, **overrides}
    longest = made["max_position_embeddings"]
    if isinstance(longest, int):  # otherwise the configuration says that it must be one
        made.setdefault("projected_dim", min(LinformerConfig().projected_dim, longest))
    try:
        return LinformerConfig(**made)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def resize(model: LinformerPreTrainedModel, max_position_embeddings: int, mode: ResizeMode) -> None:
    """`resize_sequence_length`, whose errors name the setting."""
    try:
        model.resize_sequence_length(max_position_embeddings, mode=mode)
    except InputError as error:
        named = str(error).replace("seq_len:", "max_position_embeddings:", 1)
        raise InputError(re.sub(r"^mode:", "resize_mode:", named)) from None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """As `input_errors`, with a reason of our own where a pickle was not let in."""
    with input_errors(what):
        try:
            yield
        except pickle.UnpicklingError:
            # torch names a way around its own protection, which nobody should take for a file of somebody else.
            raise ValueError("its pickle is broken, or holds what is not let in") from None
