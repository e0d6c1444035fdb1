"""Record the inputs and outputs of an encoder's layers during a forward pass, with gradients; of texts that are too
long for the encoder, which are read in pieces, too.

Axes: batch, seq_len (n), pieces, piece_len.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.training.task import Batch

_OF_TOKENS = ("last_hidden_state", "logits")  # outputs with a row for each token
_LAYER = re.compile(r"(.*\.\d+)\.")  # the innermost module of a list that holds an attention layer


@dataclass
class Trace:
    """Tensors of one forward pass, `[batch, seq_len, embed]`; one for each layer, unless stated otherwise."""

    inputs: list[Tensor] = field(default_factory=list)  # of the layers
    outputs: list[Tensor] = field(default_factory=list)
    # Outputs of the attention modules, heads merged, before or after W_O depending on the model.
    attention: list[Tensor] = field(default_factory=list)
    # One: what the base model returns, which is the last layer's output after the final norm, if there is one.
    returned: list[Tensor] = field(default_factory=list)


def layer_names(attention_names: Sequence[str]) -> list[str]:
    """The layers that hold these attention modules, each once.

    Example:
        >>> layer_names(["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"])
        ['encoder.layer.0', 'encoder.layer.1']
    """
    return list(dict.fromkeys(match[1] for name in attention_names if (match := _LAYER.match(name))))


@contextmanager
def traced(
    model: PreTrainedModel, attention_names: Sequence[str], given: Sequence[Tensor] | None = None
) -> Iterator[Trace]:
    """Record the layers of a model with forward hooks.

    `attention_names` are within the base model; inputs that are `given` replace those of the layers.
    """
    trace = Trace()
    modules = dict(model.base_model.named_modules())

    def take_in(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if given is not None:
            hidden = given[len(trace.inputs)]
            args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})
        trace.inputs.append(args[0] if args else kwargs["hidden_states"])
        return args, kwargs

    def into(kept: list[Tensor]) -> Callable[[nn.Module, tuple, Any], None]:
        return lambda _, args, output: kept.append(output if isinstance(output, Tensor) else output[0])

    hooks = [modules[name].register_forward_hook(into(trace.attention)) for name in attention_names]
    hooks.append(model.base_model.register_forward_hook(into(trace.returned)))
    for name in layer_names(attention_names):
        hooks.append(modules[name].register_forward_pre_hook(take_in, with_kwargs=True))
        hooks.append(modules[name].register_forward_hook(into(trace.outputs)))
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


class Pieces(NamedTuple):
    """A batch of texts cut into pieces. Each has the special tokens that a whole text has at its start and end."""

    inputs: Batch  # of all pieces, padded on the right
    piece: Int[Tensor, "batch seq_len"]  # index of the piece that holds each token of the texts; 0 for padding
    place: Int[Tensor, "batch seq_len"]  # of each token in its piece; 0 for padding

    def joined(self, tensor: Shaped[Tensor, "pieces piece_len *features"]) -> Shaped[Tensor, "batch seq_len *features"]:
        """Values of the tokens of the pieces in the order of the texts; those of padding are arbitrary."""
        return tensor[self.piece, self.place]

    def joined_all(self, trace: Trace, outputs: Mapping[str, Any]) -> tuple[Trace, dict[str, Tensor]]:
        """The trace of the texts, and their last hidden states and logits, from those of their pieces."""
        recorded = (trace.inputs, trace.outputs, trace.attention, trace.returned)
        layers = ([self.joined(tensor) for tensor in each] for each in recorded)
        names = [name for name in _OF_TOKENS if outputs.get(name) is not None]
        return Trace(*layers), {name: self.joined(outputs[name]) for name in names}


def split_into_pieces(inputs: Batch, *, longest: int, special: tuple[int, int], pad_token_id: int) -> Pieces:
    """Cut texts into the fewest pieces of at most `longest` tokens, about equally long.

    Args:
        inputs: `input_ids`, `attention_mask` and other inputs of one value for each token, `[batch, seq_len]`.
        longest: Most tokens of a piece, special tokens included.
        special: Number of special tokens at the start and at the end of a text (`special_tokens`).
        pad_token_id: Pads `input_ids`; other inputs are padded by 0.
    """
    mask = inputs["attention_mask"]
    first, last = special
    piece, place = torch.zeros_like(mask), torch.zeros_like(mask)
    rows: list[tuple[int, Tensor]] = []
    for row, real in enumerate(mask != 0):
        tokens = real.nonzero().flatten()
        body = tokens[first : len(tokens) - last]
        count = 1 if len(tokens) <= longest else math.ceil(len(body) / (longest - first - last))
        for number, part in enumerate(body.tensor_split(count)):
            taken = torch.cat([tokens[:first], part, tokens[len(tokens) - last :]])
            # The special tokens of a text are those of its first and last piece.
            own = slice(0 if number == 0 else first, len(taken) - (0 if number == count - 1 else last))
            piece[row, taken[own]] = len(rows)
            place[row, taken[own]] = torch.arange(len(taken), device=mask.device)[own]
            rows.append((row, taken))
    fill = {"input_ids": pad_token_id}
    parts = {
        name: pad_sequence(
            [tensor[row, taken] for row, taken in rows], batch_first=True, padding_value=fill.get(name, 0)
        )
        for name, tensor in inputs.items()
    }
    return Pieces(parts, piece, place)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Number of special tokens that a tokenizer adds at the start and at the end of a text."""
    special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return special.index(0), special[::-1].index(0)
