"""The door of the models: inputs are checked here, and their real tokens are put first.

Behind it every sequence is right-padded, and layers know lengths only. Axes: batch, seq_len (n), embed (hidden_size).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.conditions import require, values_are_cheap
from linformer_kit.operator.padding import of_samples, right_padded, take_positions


class Inputs(NamedTuple):
    """Right-padded arguments of a forward pass."""

    tokens: Tensor  # ids [batch, seq_len], or word embeddings [batch, seq_len, embed]
    position_ids: Int[Tensor, "batch_or_1 seq_len"]
    token_type_ids: Int[Tensor, "batch seq_len"] | None
    lengths: Int[Tensor, " batch"] | None  # number of real tokens; None: all
    order: Int[Tensor, "batch seq_len"] | None  # order of `padding.right_padded`; None: as the caller has them

    def of_block(self, samples: slice, rows: slice) -> Inputs:
        """Some of the tokens."""
        return Inputs(
            self.tokens[samples, rows],
            of_samples(self.position_ids, samples)[:, rows],
            None if self.token_type_ids is None else self.token_type_ids[samples, rows],
            None if self.lengths is None else self.lengths[samples] - rows.start,
            None,
        )


def checked_inputs(
    config: LinformerConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
) -> Inputs:
    """Check the arguments of `LinformerModel.forward`, and put the real tokens of each sequence first.

    Raises:
        InputError: for shapes and lengths that do not fit the configuration or each other, and ids out of range.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got both or neither")
    tokens = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
    shape = tokens.shape[:2]
    if tokens.dim() != (2 if inputs_embeds is None else 3):
        expected = f"[batch, sequence] or [batch, sequence, {config.hidden_size}]"
        raise InputError(f"input_ids, inputs_embeds: expected {expected}, got {list(tokens.shape)}")
    if not torch.compiler.is_exporting() and shape[1] > config.max_position_embeddings:
        longest = f"max_position_embeddings {config.max_position_embeddings}"
        raise InputError(f"sequence length: expected at most {longest}, got {shape[1]}")
    if input_ids is not None:
        _check_ids("input_ids", input_ids, shape, config.vocab_size)
    if position_ids is not None:
        whole = shape if len(position_ids) > 1 else (1, shape[1])
        _check_ids("position_ids", position_ids, whole, config.max_position_embeddings)
    if token_type_ids is not None and config.type_vocab_size:
        _check_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size)
    elif token_type_ids is not None:
        # Tokenizers may return zeros; of other types, a second text would count as part of the first.
        require((token_type_ids == 0).all(), "token_type_ids: expected None or only 0 because type_vocab_size is 0")
        token_type_ids = None
    if attention_mask is not None:
        check_mask(attention_mask, shape)
    return _right_padded(tokens, attention_mask, token_type_ids, position_ids)


def _right_padded(
    tokens: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
) -> Inputs:
    """Put the real tokens of each sequence first; positions that are not given count them."""
    order, lengths = (None, None) if attention_mask is None else right_padded(attention_mask == 0)
    if order is not None:
        tokens = take_positions(tokens, order)
        if token_type_ids is not None:
            token_type_ids = take_positions(token_type_ids, order)
        if position_ids is not None:
            position_ids = take_positions(position_ids.expand(order.shape), order)
    if position_ids is None:
        position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
    return Inputs(tokens, position_ids, token_type_ids, lengths, order)


def _check_ids(name: str, ids: Tensor, shape: Sequence[int], limit: int) -> None:
    """Check the shape of ids, and their range where reading values is cheap; accelerators have their own check."""
    if ids.shape != tuple(shape):
        raise InputError(f"{name}: expected {list(shape)}, got {list(ids.shape)}")
    if values_are_cheap(ids) and ids.numel():
        low, high = ids.min().item(), ids.max().item()
        if low < 0 or high >= limit:
            raise InputError(f"{name}: expected ids from 0 to {limit - 1}, got {low if low < 0 else high}")


def check_mask(attention_mask: Tensor, shape: Sequence[int]) -> None:
    """Check the shape of a mask; in floating point, as PEFT makes it, it must not be an additive one."""
    expected = f"attention_mask: expected {list(shape)}, 1 on real tokens and 0 on padding"
    if attention_mask.shape != tuple(shape):
        raise InputError(f"{expected}, got {list(attention_mask.shape)}")
    if attention_mask.is_floating_point():
        is_binary = ((attention_mask == 0) | (attention_mask == 1)).all() & attention_mask.any()
        require(is_binary, f"{expected}, got other numbers or only 0 in {attention_mask.dtype}")
