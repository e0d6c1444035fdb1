"""The configuration field `linformer` of linearised models, and the E and F built from it."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import Field

from linformer_cli.errors import InputError
from linformer_cli.settings import Projection, ProjectionInitializer, Sharing, ShorterInput
from linformer_cli.settings.declare import LONGEST, settings
from linformer_kit.operator.projections import SequenceProjection, build_projection
from linformer_kit.operator.projections.sizes import largest_dim

EXACT = ("sliding_window", "global_tokens")  # entries for tokens that queries see exactly, besides the slots
_Size = Annotated[int, Field(ge=1, le=LONGEST)]
_Tokens = Annotated[int, Field(ge=0, le=LONGEST)]


@settings
class LinearFields:
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
    num_heads: _Size
    head_dim: _Size
    seq_len: _Size
    projected_dim: int | list[int] | list[list[int]]
    sharing: Sharing
    projection: Projection
    projection_initializer: ProjectionInitializer
    shorter_input: ShorterInput
    sliding_window: _Tokens
    global_tokens: _Tokens

    @classmethod
    def of(cls, content: Any) -> LinearFields:
        """Read and check the field; raises an `InputError` with the name of the entry."""
        if not isinstance(content, dict):
            raise InputError(f"linformer: expected names and values in config.json, got {content!r}")
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in content if name not in known]:
            raise InputError(f"linformer.{unknown[0]}: expected entries that `linearize` writes, got an unknown one")
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
        projections = [
            build_projection(
                self.projection,
                seq_len=self.seq_len,
                projected_dim=largest_dim(dims) if self.shared else self.slots(layer),
                num_heads=self.num_heads,
                head_dim=self.head_dim,
                sharing=self.sharing,
                shorter_input=self.shorter_input,
                initializer=self.projection_initializer,
            )
            for layer in range(min(layers, 1) if self.shared else layers)
        ]
        for layer in range(layers if self.shared else 0):
            projections[0].checked_slots(self.slots(layer), self.num_heads)
        return projections

    def slots(self, layer: int) -> int | list[int]:
        """k of a layer, or of each of its heads."""
        return self.projected_dim[layer] if isinstance(self.projected_dim, list) else self.projected_dim
