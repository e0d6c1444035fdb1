"""What a causal model keeps of texts to continue them: for each linear layer a constant number of keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from linformer_cli.errors import InputError, check_input
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.conditions import require, values_are_cheap
from linformer_kit.operator.padding import last_tokens
from linformer_kit.operator.slots import ForwardPass, Slots
from linformer_kit.operator.steps import Past, keep, next_slots

# The name of a cache among arguments and outputs: `past_key_values`, from transformers 5.24 on `cache`.
CACHE = dataclasses.fields(BaseModelOutputWithPast)[1].name


class _NotSupported(InputError, AttributeError):
    """For what other caches have: `hasattr` says no, and calls end in one line."""


class LayerCache:
    """What one layer keeps of texts."""

    past: Past | None = None
    inputs: Float[Tensor, "batch before embed"] | None = None  # the last ones, for a local convolution
    # The same after a pass that has not ended: one that is refused or interrupted changes nothing.
    new_past: Past | None = None
    new_inputs: Float[Tensor, "batch before embed"] | None = None

    def __getattr__(self, name: str) -> Any:
        # `Cache` has many methods that call those of its layers, and every release has others.
        raise _NotSupported(f"past_key_values: expected a cache that has {name!r}, got LinformerCache, which has not")

    def next_slots(
        self, attention: ProjectedAttention, keys: Float[Tensor, "batch seq_len embed"], forward_pass: ForwardPass
    ) -> Slots:
        """The slots of a layer's attention for these tokens; what the next ones need is kept."""
        past = self.past
        slots = (
            attention.project(keys, None, forward_pass)
            if past is None
            else next_slots(attention, keys, past, forward_pass)
        )
        self.new_past = keep(attention, slots, forward_pass)
        return slots

    def inputs_before(
        self, inputs: Tensor, forward_pass: ForwardPass, count: int
    ) -> Float[Tensor, "batch before embed"]:
        """The last inputs before these, whose padding is zero; the last of these are kept."""
        before = inputs.new_zeros(len(inputs), count, inputs.shape[2]) if self.inputs is None else self.inputs
        lengths = None if forward_pass.lengths is None else count + forward_pass.lengths
        self.new_inputs = last_tokens(torch.cat([before, inputs], dim=1), lengths, count)
        return before


class LinformerCache(Cache):
    """What all layers keep of texts, and the number of tokens of each text.

    `model(..., use_cache=True)` returns one as `past_key_values`, and continues it. Its size does not depend on the
    number of tokens, except for layers with full attention. The next tokens are for a model of the same configuration.
    """

    is_compileable = is_croppable = False  # type: ignore[assignment]  # properties of `Cache`

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(layers=[LayerCache() for _ in range(config.num_hidden_layers)])
        self.fields = config.own_fields
        self.columns = 0  # tokens of each row so far, padding included
        self.lengths: Int[Tensor, " batch"] | None = None  # without padding

    def checked_mask(
        self, model: PreTrainedModel, mask: Tensor | None, shape: Sequence[int]
    ) -> Shaped[Tensor, "batch seq_len"] | None:
        """The columns of the new tokens, of this shape, in a mask of all tokens that fits those before.

        Raises:
            InputError: also for a model that cannot continue these texts.
        """
        batch, columns = shape
        if model.training and model.is_activation_checkpointing:
            names = "use_cache, past_key_values"
            raise InputError(f"{names}: expected none in training with activation checkpointing, got a cache")
        is_of_model = model.config.own_fields == self.fields
        check_input(is_of_model, "past_key_values", "those of this model", "those of another")
        check_input(columns > 0, "input_ids", "at least one token with use_cache or past_key_values", columns)
        if self.lengths is None:
            return mask
        check_input(len(self.lengths) == batch, "past_key_values", f"those of {batch} texts", len(self.lengths))
        if not isinstance(mask, Tensor):  # other types than None are refused with those of other arguments
            return mask
        expected = [batch, self.columns + columns]
        check_input(list(mask.shape) == expected, "attention_mask", f"{expected}, with past tokens", list(mask.shape))
        past, new = mask.split([self.columns, columns], dim=1)
        if values_are_cheap(mask):
            same = ((past != 0).sum(dim=1) == self.lengths).all()
            require(same, "attention_mask: expected that of past_key_values for its tokens, got another one")
        return new

    def count(self, tokens: Float[Tensor, "batch seq_len embed"], lengths: Int[Tensor, " batch"] | None) -> None:
        """End a pass: keep what its layers have, and count its tokens; `lengths`: without padding, None: all."""
        for layer in self.layers:
            layer.past, layer.inputs, layer.new_past, layer.new_inputs = layer.new_past, layer.new_inputs, None, None
        batch, columns = tokens.shape[:2]
        new = torch.full((batch,), columns, device=tokens.device) if lengths is None else lengths
        self.columns += columns
        self.lengths = new if self.lengths is None else self.lengths + new

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    @property
    def batch_size(self) -> int:
        """The number of texts; -1 before the first tokens, as in other caches."""
        return -1 if self.lengths is None else len(self.lengths)

    def reset(self) -> None:
        self.columns, self.lengths = 0, None
        for layer in self.layers:
            layer.past = layer.inputs = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._change(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change(lambda tensor: tensor[indices])

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to all tensors, whose first axis is that of the texts."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):  # a past
                return type(value)(*map(changed, value))
            return change(value) if isinstance(value, Tensor) else value

        self.lengths = changed(self.lengths)
        for layer in self.layers:
            layer.past, layer.inputs = changed(layer.past), changed(layer.inputs)


def check_is_ours(past: Any) -> None:
    """Raise an error for the caches of other models."""
    expected = "None, or what an earlier call returned"
    check_input(isinstance(past, LinformerCache), "past_key_values", expected, type(past).__name__)


def given_cache(past_key_values: Any, cache: Any) -> Any:
    """The cache of a call, which may have either name.

    Raises:
        InputError: for both.
    """
    check_input(past_key_values is None or cache is None, "past_key_values, cache", "one of them", "both")
    return cache if past_key_values is None else past_key_values
