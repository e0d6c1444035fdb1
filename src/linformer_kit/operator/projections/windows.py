"""Projections with windows that tile a sequence: means, maxima and learned kernels (section 4, "general projections").

Axes as in `slots`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.conditions import is_ordinary, needs_gradient
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.padding import take_positions
from linformer_kit.operator.projections.base import Compressed, LearnedProjection, SequenceProjection, Tokens
from linformer_kit.operator.projections.sizes import stretch_matrix
from linformer_kit.operator.slots import ForwardPass, merge_heads


class Windows(NamedTuple):
    """Windows over right-padded sequences: their positions, and which of these are real."""

    positions: Int[Tensor, "batch_or_1 slots window"]  # any existing ones where there is no real token
    real: Bool[Tensor, "batch_or_1 slots window"]
    kernels: Kernels

    def of(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch slots window embed"]:
        """The tokens at the positions."""
        if self.kernels.exporting:  # ONNX cannot take any from a text of global tokens only, which has no others
            hidden = F.pad(hidden, (0, 0, 0, 1))
        return take_positions(hidden, self.positions.flatten(1)).unflatten(1, tuple(self.positions.shape[1:]))

    def means(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch slots embed"]:
        """The mean of the real tokens in each window, summed in float32 or wider; 0 for a window without any.

        As products with rows of ones, several times as fast as sums; ones become 2⁻ᶜ, so that no sum overflows. On a
        CPU in inference in one pass by `embedding_bag`, except in float16, where its sums overflow: on AVX-512 with
        bfloat16 a linearised MiniLM takes 1.1 to 1.2 times as long with products.
        """
        one_pass = not self.kernels.is_plain and hidden.dtype != torch.float16 and is_ordinary(hidden)
        if one_pass and not needs_gradient(hidden):
            return self._means_in_one_pass(hidden)
        scale = 2.0 ** int(self.real.shape[2]).bit_length()
        ones = (self.real.to(hidden.dtype) / scale)[:, :, None]
        sums = self.kernels.widened(torch.matmul, ones, self.of(hidden))[:, :, 0]
        count = self.real.sum(dim=2).clamp(min=1)[..., None].to(torch.promote_types(hidden.dtype, torch.float32))
        return (sums * (scale / count)).to(hidden.dtype)

    def _means_in_one_pass(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        places = self.positions + length * torch.arange(batch, device=hidden.device)[:, None, None]
        real = self.real.expand_as(places)
        sizes = real.sum(dim=2).flatten()
        means = F.embedding_bag(places[real], hidden.flatten(0, 1), sizes.cumsum(0) - sizes, mode="mean")
        return means.unflatten(0, (batch, self.positions.shape[1]))


class WindowProjection(SequenceProjection):
    """Slot i is computed from window i of the k windows that tile the sequence. A subclass writes `reduce`."""

    windowed = True

    @abstractmethod
    def reduce(
        self, windows: Windows, tokens: Float[Tensor, "batch heads seq_len dim"], are_values: bool
    ) -> Float[Tensor, "batch heads slots dim"]:
        """Reduce the tokens in each window to a slot."""

    def forward(self, tokens: Tokens, slots: int) -> Compressed:
        seq_len = tokens.key.shape[2]
        self._check_length(seq_len, tokens.forward_pass.kernels)
        windows = self.windows(seq_len, slots, tokens.forward_pass, tokens.key.device)

        def reduce(hidden: Tensor, are_values: bool) -> Tensor:
            reduced = self.reduce(windows, hidden, are_values)
            if reduced.shape != (expected := (*hidden.shape[:2], windows.positions.shape[1], hidden.shape[3])):
                raise InputError(f"reduce: expected {list(expected)}, got {list(reduced.shape)}")
            return reduced

        return Compressed(*tokens.map(reduce, tied=self.tied), sizes=windows.real.sum(-1))

    def windows(
        self, seq_len: int, slots: int, forward_pass: ForwardPass, device: torch.device | None = None
    ) -> Windows:
        """Exactly k windows tile the longest sequence, and their sizes differ by at most one.

        Window i has positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋ of n. A text of m < n tokens keeps these windows and fills only
        the first ones, the last of them maybe partly; or, with `stretch`, min(k, m) windows tile the m tokens.

        Args:
            seq_len: Positions in the batch, padding included.
            slots: k.
            forward_pass: The forward pass.
            device: Device of the result if it has no lengths.
        """
        lengths, kernels = forward_pass.lengths, forward_pass.kernels
        real = torch.full((1,), seq_len, device=device) if lengths is None else lengths
        longest: int = self.seq_len
        tiled: int | Tensor = longest
        number: int | Tensor = slots
        count = slots if kernels.exporting else -(-seq_len * slots // longest)  # an exported program has all lengths
        if self.shorter_input == "stretch":
            tiled, number = real[:, None], real.clamp(min=1, max=slots)[:, None]
            if not kernels.exporting:
                count, longest = min(slots, seq_len), max(1, seq_len)
        edges = torch.arange(count + 1, device=real.device) * tiled // number
        edges = torch.minimum(edges.expand(real.shape[0], -1), real[:, None])
        positions = edges[:, :-1, None] + torch.arange(-(-longest // slots), device=real.device)
        last = seq_len if kernels.exporting else seq_len - 1
        return Windows(positions.clamp(max=last), positions < edges[:, 1:, None], kernels)

    def check_resize(self, seq_len: int, mode: str) -> None:
        super().check_resize(seq_len, mode)
        if mode == "extend":
            for k in self.head_dims:
                more_windows(k, self.seq_len, seq_len)

    def change_length(self, seq_len: int, mode: str) -> None:
        if mode == "extend":
            self.head_dims = tuple(more_windows(k, self.seq_len, seq_len) for k in self.head_dims)


def more_windows(projected_dim: int, seq_len: int, new_seq_len: int) -> int:
    """Number of windows of the same size that tile a longer sequence.

    Raises:
        InputError: if no whole number of windows does.
    """
    if projected_dim * new_seq_len % seq_len:
        raise InputError(
            f"seq_len: expected whole windows of {seq_len}/{projected_dim} positions for mode extend, got {new_seq_len}"
        )
    return projected_dim * new_seq_len // seq_len


class MeanPoolProjection(WindowProjection):
    """Slot i is the mean of the real tokens in window i."""

    commutes = True

    def reduce(self, windows: Windows, tokens: Tensor, are_values: bool) -> Tensor:
        return windows.means(merge_heads(tokens)).unflatten(2, (tokens.shape[1], -1)).transpose(1, 2)

    def exact_length(self, slots: int) -> float:
        return slots if self.shorter_input == "stretch" else 0


class MaxPoolProjection(WindowProjection):
    """Slot i is the maximum of the real tokens in window i, in each dimension of K·W_K or V·W_V; 0 without any."""

    def reduce(self, windows: Windows, tokens: Tensor, are_values: bool) -> Tensor:
        inside = windows.of(merge_heads(tokens)).masked_fill(~windows.real[..., None], -math.inf)
        largest = inside.amax(dim=2).masked_fill(~windows.real[..., :1], 0.0)
        return largest.unflatten(2, (tokens.shape[1], -1)).transpose(1, 2)


class ConvProjection(LearnedProjection, WindowProjection):
    """A learned convolution with stride n/k over K·W_K and V·W_V: slot i weighs the tokens of window i.

    The kernel has width ⌈n/k⌉; shorter windows drop its last taps. There is no bias. The parameters are
    `key_projection` and, unless E = F, `value_projection`, each `[head_dim, width]`, for sharing `none` with a first
    axis of heads. They are initialised to the scaled mean of the window. The kernel needs the same k for all heads.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.checked_slots(None, self.num_heads)  # one k for all heads

    def checked_slots(self, projected_dim: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
        dims = super().checked_slots(projected_dim, num_heads)
        expected = "one constant number for all heads, because the kernel of a convolution depends on it"
        different = sorted({*dims, *self.head_dims})
        check_input(len(different) == 1, "projected_dim", expected, different)
        return dims

    def _start(self) -> Tensor:
        width = -(-self.seq_len // self.projected_dim)
        check_input(self.head_dim is not None, "head_dim", "the width of a head", self.head_dim)
        kernel = torch.full((cast(int, self.head_dim), width), 1 / math.sqrt(width))
        return kernel if self.shared_by_heads else kernel.repeat(self.num_heads, 1, 1)

    def reduce(self, windows: Windows, tokens: Tensor, are_values: bool) -> Tensor:
        heads, dim = tokens.shape[1], tokens.shape[3]
        check_input(dim == self.head_dim, "head_dim", f"{self.head_dim}, as the kernel has", dim)
        kernel = self.value_projection if are_values and self.value_projection is not None else self.key_projection
        inside = windows.of(merge_heads(tokens)).masked_fill(~windows.real[..., None], 0.0).unflatten(3, (heads, dim))
        by_head = kernel[None] if self.shared_by_heads else kernel
        taps = by_head.movedim(-1, 0)[: inside.shape[2]]  # [width, heads or 1, head_dim]
        return (inside * taps.to(inside.dtype)).sum(dim=2).transpose(1, 2)

    def change_length(self, seq_len: int, mode: str) -> None:
        super().change_length(seq_len, mode)
        if mode == "interpolate":
            self._replace_parameters(lambda kernel: stretch_matrix(kernel, -(-seq_len // self.projected_dim)))
