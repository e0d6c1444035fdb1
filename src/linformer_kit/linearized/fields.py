"""The configuration field `linformer` of linearised models: its checks, and the E and F built from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linformer_kit.errors import InputError
from linformer_kit.models.configuration import warn_of_unknown
from linformer_kit.operator.checks import LONGEST
from linformer_kit.operator.projections import (
    HeadGroups,
    SequenceProjection,
    build_projection,
    is_integer,
    largest_dim,
)
from linformer_kit.operator.projections.sizes import slots_by_head


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return is_integer(value) and 0 < value <= LONGEST


def _is_count(value: Any) -> bool:
    return is_integer(value) and 0 <= value <= LONGEST


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_word, value)) and len(set(value)) == len(value)


# The entries that `linearize` writes, and a check of each value.
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "base_model_type": _is_word,
    "layers": _are_names,
    "local_layers": _are_names,
    "full_layers": _are_names,
    "num_heads": _is_size,
    "head_dim": _is_size,
    "seq_len": _is_size,
    "projected_dim": lambda value: isinstance(value, (int, list)),  # the projection checks the values
    "sharing": _is_word,
    "projection": _is_word,
    "projection_initializer": _is_word,
    "shorter_input": _is_word,
    "sliding_window": _is_count,
    "global_tokens": _is_count,
}

EXACT = ("sliding_window", "global_tokens")  # entries for tokens that queries see exactly, besides the slots


def check_fields(fields: Any) -> dict[str, Any]:
    """Check the fields; unknown ones (of a later version) are kept, with a warning.

    Raises:
        InputError: if they were not written by `linearize`.
    """
    if not isinstance(fields, dict) or not fields.keys() >= _FIELDS.keys():
        raise InputError(f"linformer: expected {', '.join(sorted(_FIELDS))} in config.json, got {fields!r}")
    if unknown := fields.keys() - _FIELDS.keys():
        warn_of_unknown(frozenset(f"linformer.{name}" for name in unknown))
    for name, fits in _FIELDS.items():
        if not fits(fields[name]):
            raise InputError(f"linformer.{name}: expected what `linearize` writes in config.json, got {fields[name]!r}")
    return fields


def new_projections(fields: dict[str, Any]) -> list[SequenceProjection]:
    """Build E and F of each layer, or the shared one of all layers, from the fields.

    Raises:
        InputError: for invalid values.
    """
    layers, dims = len(fields["layers"]), fields["projected_dim"]
    if isinstance(dims, list) and len(dims) != layers:
        raise InputError(f"projected_dim: expected one for each of {layers} layers, got {dims}")
    shared = fields["sharing"] == "layerwise"
    made = [
        build_projection(
            fields["projection"],
            seq_len=fields["seq_len"],
            projected_dim=largest_dim(dims) if shared else slots_of_layer(fields, layer),
            num_heads=fields["num_heads"],
            head_dim=fields["head_dim"],
            sharing=fields["sharing"],
            shorter_input=fields["shorter_input"],
            initializer=fields["projection_initializer"],
        )
        for layer in range(1 if shared else layers)
    ]
    for layer in range(layers if shared else 0):
        made[0].fewer_slots(slots_of_layer(fields, layer), fields["num_heads"])
    return made


def unchanged_layers(fields: dict[str, Any]) -> list[str]:
    """Names of the attention modules that keep their own attention."""
    return [*fields["local_layers"], *fields["full_layers"]]


def slots_of_layer(fields: dict[str, Any], layer: int) -> int | list[int]:
    """k of a layer, or of each of its heads."""
    dims = fields["projected_dim"]
    return dims[layer] if isinstance(dims, list) else dims


def groups_of_layer(fields: dict[str, Any], layer: int) -> HeadGroups:
    """The heads of a layer, grouped by number of slots."""
    return HeadGroups.of(slots_by_head(slots_of_layer(fields, layer), fields["num_heads"]))
