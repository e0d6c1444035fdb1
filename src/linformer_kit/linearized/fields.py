"""The configuration field `linformer` of linearised models, and the E and F built from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from linformer_cli.errors import InputError
from linformer_cli.settings import SlotSettings
from linformer_cli.settings.declare import Length, settings
from linformer_kit.operator.projections import SequenceProjection, build_projection
from linformer_kit.operator.projections.sizes import largest_dim

EXACT = ("sliding_window", "global_tokens")  # entries for tokens that queries see exactly, besides the slots


@settings
class LinearFields(SlotSettings):
    """What config.json says of the linear layers, under `linformer`.

    Attributes:
        base_model_type: Model type of the original model.
        layers: Names of the linear attention modules within the base model.
        local_layers: Names of those with a window of their own, which they keep.
        full_layers: Names of those that keep full attention.
        num_heads: h.
        head_dim: d.
        seq_len: n.

    All others are arguments of `linearize`.
    """

    base_model_type: str
    layers: list[str]
    local_layers: list[str]
    full_layers: list[str]
    num_heads: Length
    head_dim: Length
    seq_len: Length

    @classmethod
    def of(cls, content: Any) -> LinearFields:
        """Read and check the field; raises an `InputError` with the name of the entry."""
        if not isinstance(content, dict):
            raise InputError(f"linformer: expected names and values in config.json, got {content!r}")
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in content if name not in known]:
            raise InputError(f"linformer.{unknown[0]}: expected entries that `linearize` writes, got an unknown one")
        if absent := [name for name in (*cls.__annotations__, *known) if name not in content]:
            raise InputError(f"linformer.{absent[0]}: expected a value, got none, in config.json")
        try:
            return cls(**content)
        except InputError as error:
            raise InputError(f"linformer.{error}, in config.json") from None

    @property
    def attention_names(self) -> list[str]:
        """Names of all attention modules within the base model."""
        return [*self.layers, *self.local_layers, *self.full_layers]

    @property
    def shared(self) -> bool:
        """Whether all layers have one E = F."""
        return self.sharing == "layerwise"

    def new_projections(self) -> list[SequenceProjection]:
        """New E and F of each layer, or the shared one of all; numbers of slots that do not fit raise an error."""
        layers, dims = len(self.layers), self.projected_dim
        if isinstance(dims, list) and len(dims) != layers:
            raise InputError(f"projected_dim: expected one for each of {layers} layers, got {dims}")
        of_layers = [self.projected_dim_of(layer) for layer in range(layers)]
        built = [largest_dim(dims)][:layers] if self.shared else of_layers
        projections = [build_projection(self, self.seq_len, k, self.num_heads, self.head_dim) for k in built]
        for k in of_layers if self.shared else ():
            projections[0].checked_slots(k, self.num_heads)
        return projections
