"""The configuration field `linformer` of linearised models: its checks, and the E and F built from it."""

from __future__ import annotations

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

# The entries that `linearize` writes, by the kind of their values; `projected_dim` is checked by the projection.
_WORDS = ("base_model_type", "sharing", "projection", "projection_initializer", "shorter_input")
_NAMES = ("layers", "local_layers", "full_layers")
_COUNTS = ("num_heads", "head_dim", "seq_len", "sliding_window", "global_tokens")
_FIELDS = {*_WORDS, *_NAMES, *_COUNTS, "projected_dim"}

EXACT = ("sliding_window", "global_tokens")  # entries for tokens that queries see exactly, besides the slots


def check_fields(fields: Any) -> dict[str, Any]:
    """Check the fields; unknown ones (of a later version) are kept, with a warning."""
    if not isinstance(fields, dict) or not fields.keys() >= _FIELDS:
        raise InputError(f"linformer: expected {', '.join(sorted(_FIELDS))} in config.json, got {fields!r}")
    if unknown := fields.keys() - _FIELDS:
        warn_of_unknown(frozenset(f"linformer.{name}" for name in unknown))
    for name in sorted(_FIELDS):
        if not _fits(name, fields[name]):
            raise InputError(f"linformer.{name}: expected what `linearize` writes in config.json, got {fields[name]!r}")
    return fields


def _fits(name: str, value: Any) -> bool:
    if name in _WORDS:
        return isinstance(value, str)
    if name in _NAMES:
        return (
            isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)
        )
    if name in _COUNTS:
        least = 0 if name in EXACT else 1
        return is_integer(value) and least <= value <= LONGEST
    return isinstance(value, (int, list))


def new_projections(fields: dict[str, Any]) -> list[SequenceProjection]:
    """Build E and F of each layer, or the shared one of all layers, from the fields."""
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
