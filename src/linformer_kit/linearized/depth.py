"""Removal of encoder layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from linformer_kit.errors import InputError
from linformer_kit.linearized.layers import attention_layers


def layers_to_keep(model: PreTrainedModel, count: int) -> list[int]:
    """Indices of `count` layers at even distances, including the last one.

    Raises:
        InputError: for more layers than the model has, or a model whose layers cannot be removed.
    """
    layers = attention_layers(model)
    containers = {_container(layer.name) for layer in layers}
    made = model.config.num_hidden_layers
    if len(containers) != 1 or len(layers) != made or any(layer.local for layer in layers):
        kind = type(model).__name__
        raise InputError(f"student_layers: expected none for {kind}, whose layers are not all of one kind, got {count}")
    if not 1 <= count <= made:
        raise InputError(f"student_layers: expected 1 to {made}, as the teacher has, got {count}")
    return [(number + 1) * made // count - 1 for number in range(count)]


def keep_layers(model: PreTrainedModel, numbers: Sequence[int]) -> None:
    """Remove all other layers of a model, in-place."""
    name = _container(attention_layers(model)[0].name)
    layers = model.base_model.get_submodule(name)
    model.base_model.set_submodule(name, nn.ModuleList([layers[number] for number in numbers]))
    model.config.num_hidden_layers = len(numbers)


def _container(attention_name: str) -> str:
    """Name of the module list with the layer of an attention module."""
    parts = attention_name.split(".")
    innermost = max(place for place, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[:innermost])
