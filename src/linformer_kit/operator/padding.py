"""Padding: which tokens of a batch are real, as one object for a whole forward pass.

Axes as in `slots`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from linformer_kit.operator.values import values_are_cheap

_LAST = 1 << 32  # added to positions of padding, so that all numbers differ: ONNX has no stable sort
_Maybe = TypeVar("_Maybe", Tensor, Tensor | None)


class Padding(NamedTuple):
    """Which tokens of a batch are real; None is used if all are.

    Created once per forward pass, from a checked mask, and passed unchanged through all layers. It is a tuple of
    tensors, so that tools that move the arguments of layers to devices move these too.
    """

    mask: Bool[Tensor, "batch seq_len"]  # True where padded
    lengths: Int[Tensor, " batch"]  # real tokens of each sequence
    order: Int[Tensor, "batch seq_len"] | None  # positions, real tokens first; None: not needed

    @classmethod
    def of(cls, mask: Bool[Tensor, "batch seq_len"], *, ordered: bool = True) -> Padding:
        """The padding of a mask: on the left, on the right, or in the middle.

        Args:
            mask: True where padded.
            ordered: Whether real tokens must come first. Full attention does not need it.
        """
        sort = ordered and not _is_right_padded(mask)
        return cls(mask, (~mask).sum(dim=1), real_tokens_first(mask) if sort else None)

    @classmethod
    def sorted(cls, mask: Bool[Tensor, "batch seq_len"]) -> Padding:
        """As `of`, but always with an order, even if real tokens are first already.

        So the values of the mask are not read, and gradients are summed in the same order for every mask.
        """
        return cls(mask, (~mask).sum(dim=1), real_tokens_first(mask))

    @classmethod
    def after(cls, lengths: Int[Tensor, " batch"], seq_len: int) -> Padding:
        """The padding of sequences that start with `lengths` real tokens, each from 0 to seq_len."""
        return cls(padding_after(lengths, seq_len), lengths, None)

    def zero(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        """Set padding to zero, by selection: a NaN there reaches neither outputs nor gradients."""
        return zero_padding(hidden, self.mask)

    def real_first(self, hidden: Shaped[Tensor, "batch seq_len embed"]) -> Shaped[Tensor, "batch seq_len embed"]:
        """Move real tokens to the front; `reordered` is the padding of the result."""
        return hidden if self.order is None else take_positions(hidden, self.order)

    def put_back(self, hidden: Shaped[Tensor, "batch seq_len embed"]) -> Shaped[Tensor, "batch seq_len embed"]:
        """Undo `real_first`."""
        return hidden if self.order is None else take_positions(hidden, self.order.sort(dim=1).indices)

    def reordered(self) -> Padding:
        """The padding after `real_first`, on the right."""
        return self if self.order is None else Padding.after(self.lengths, self.mask.shape[1])

    def cut(self, tokens: slice) -> Padding:
        """The padding of some of the tokens, of which the real ones must be first."""
        mask = self.mask[:, tokens]
        return Padding(mask, (~mask).sum(dim=1), None)

    def of_samples(self, samples: slice) -> Padding:
        """The padding of some of the sequences."""
        order = None if self.order is None else self.order[samples]
        return Padding(self.mask[samples], self.lengths[samples], order)


def of_samples(tensor: _Maybe, samples: slice) -> _Maybe:
    """Some of the sequences of a tensor, `[batch, …]`, or all of `[1, …]`, which is for every sequence, or of None."""
    return tensor if tensor is None or tensor.shape[0] == 1 else tensor[samples]


def zero_padding(
    hidden: Float[Tensor, "batch seq_len embed"], mask: Bool[Tensor, "batch seq_len"] | None
) -> Float[Tensor, "batch seq_len embed"]:
    """Set padded positions (True in the mask) to zero, by selection: a NaN in padding has no effect."""
    return hidden if mask is None else hidden.masked_fill(mask[..., None], 0.0)


def real_tokens_first(mask: Bool[Tensor, "batch seq_len"]) -> Int[Tensor, "batch seq_len"]:
    """The positions of the real tokens in their order, then those of padding (True in the mask).

    In this order every sequence is right-padded, so left padding and padding in the middle need no extra code.
    """
    return (mask * _LAST + torch.arange(mask.shape[1], device=mask.device)).sort(dim=1).indices


def take_positions(
    hidden: Shaped[Tensor, "batch seq_len embed"], positions: Int[Tensor, "batch_or_1 taken"]
) -> Shaped[Tensor, "batch taken embed"]:
    """The given positions of each sequence."""
    # `len`, and any comparison in a trace, would fix the number of sequences of an exported program.
    if not torch.jit.is_tracing() and positions.shape[0] == 1:
        return hidden.index_select(1, positions[0])
    return hidden.gather(1, positions[..., None].expand(hidden.shape[0], -1, hidden.shape[-1]))


def padding_after(lengths: Int[Tensor, " batch"], seq_len: int) -> Bool[Tensor, "batch seq_len"]:
    """The mask, True where padded, of sequences that start with `lengths` real tokens."""
    return torch.arange(seq_len, device=lengths.device) >= lengths[:, None]


def _is_right_padded(mask: Bool[Tensor, "batch seq_len"]) -> bool:
    """Whether no real token follows padding; False if reading values is expensive: on accelerators and in traces."""
    return values_are_cheap(mask) and bool((mask[:, 1:] >= mask[:, :-1]).all())
