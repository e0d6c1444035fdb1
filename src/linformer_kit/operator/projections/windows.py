"""Projections by windows that tile the sequence: means, maxima, and learned convolutions.

Axes as in `functional`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linformer_kit.errors import InputError
from linformer_kit.operator.functional import Windows, pooling_windows, stretch_matrix
from linformer_kit.operator.projections.base import Groups, Inputs, LearnedProjection, Piece, SequenceProjection, Slots
from linformer_kit.operator.projections.maps import of_heads


class _WindowProjection(SequenceProjection):
    """Slot i comes from window i of k that tile the sequence (`functional.pooling_windows`)."""

    windowed = True

    def _windows(self, slots: int, hidden: Tensor, lengths: Tensor | None) -> tuple[Windows, Tensor | None]:
        """The windows, and which slots are empty."""
        exporting = torch.compiler.is_exporting()
        windows = pooling_windows(
            slots,
            self.seq_len,
            hidden.shape[1],
            lengths,
            stretch=self.shorter_input == "stretch",
            count=slots if exporting else None,
            device=hidden.device,
        )
        return windows, windows.empty if exporting or lengths is not None else None

    def check_resize(self, seq_len: int, mode: str) -> None:
        super().check_resize(seq_len, mode)
        if mode == "extend":
            for k in self.head_dims:
                more_windows(k, self.seq_len, seq_len)

    def _resize(self, seq_len: int, mode: str) -> None:
        if mode == "extend":
            self.head_dims = tuple(more_windows(k, self.seq_len, seq_len) for k in self.head_dims)


class MeanPoolProjection(_WindowProjection):
    """Slot i is the mean of the real tokens in window i (section 4, "general projections")."""

    adds_up = True

    def _project(self, inputs: Inputs, groups: Groups) -> list[Slots]:
        tokens = [inputs.key] if inputs.value is inputs.key else [inputs.key, inputs.value]
        if self.piece is None:
            pooled = [self._means(k, tokens, inputs.lengths) for k, _ in groups]
        else:
            pooled = self._means_of_pieces([k for k, _ in groups], tokens, inputs.padding_mask, self.piece)
        return [
            Slots(
                of_heads(inputs.key_map.of_compressed(means[0]), heads, 1),
                of_heads(inputs.value_map.of_compressed(means[-1]), heads, 1),
                empty,
                heads,
            )
            for (_, heads), (means, empty) in zip(groups, pooled, strict=True)
        ]

    def _means(self, slots: int, tokens: list[Tensor], lengths: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Means of each of the tokens, and which slots are empty."""
        windows, empty = self._windows(slots, tokens[0], lengths)
        return [self._mean(windows, hidden) for hidden in tokens], empty

    def _means_of_pieces(
        self, slots: list[int], tokens: list[Tensor], padding_mask: Tensor | None, piece: Piece
    ) -> list[tuple[list[Tensor], Tensor | None]]:
        """The same for several numbers of slots, from sums over the positions that are here, and their counts."""
        hidden = tokens[0]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        here = torch.arange(self.seq_len, device=hidden.device)[piece.positions][: hidden.shape[1]]
        real = torch.ones_like(hidden[..., :1], dtype=wide)
        real = real if padding_mask is None else real.masked_fill(padding_mask[..., None], 0.0)
        parts = []
        for k in slots:
            window = ((here + 1) * k - 1) // self.seq_len
            for values in (real, *tokens):
                zeros = values.new_zeros(len(values), k, values.shape[2], dtype=wide)
                parts.append(zeros.index_add(1, window, values.to(wide)))
        sums, size = piece.add(parts), 1 + len(tokens)
        pooled: list[tuple[list[Tensor], Tensor | None]] = []
        for start in range(0, len(sums), size):
            count, *totals = sums[start : start + size]
            means = [(total / count.clamp(min=1)).to(hidden.dtype) for total in totals]
            pooled.append((means, count[..., 0] == 0))
        return pooled

    @staticmethod
    def _mean(windows: Windows, hidden: Tensor) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)  # sums of long windows overflow in half precision
        means = windows.of(hidden).sum(dim=2, dtype=wide) / windows.real.sum(dim=2).clamp(min=1)[..., None]
        return means.to(hidden.dtype)


class _MappedWindowProjection(_WindowProjection):
    """What is done in the windows does not commute with W_K and W_V, and comes after them."""

    def _reduce(self, windows: Windows, mapped: Tensor, name: str) -> Tensor:
        """Slots, `[batch, heads, slots, head_dim]`, of X·W, `[batch, seq_len, heads, head_dim]`, by a parameter."""
        raise NotImplementedError

    def _project(self, inputs: Inputs, groups: Groups) -> list[Slots]:
        key, value, key_map, value_map, lengths = inputs
        maps = (
            (key_map, key_map(key, inputs.padding_mask), "key_projection"),
            (value_map, value_map(value, inputs.padding_mask), "value_projection"),
        )
        slots = []
        for k, heads in groups:
            windows, empty = self._windows(k, key, lengths)
            key_slots, value_slots = (
                head_map.add_bias(self._reduce(windows, of_heads(mapped, heads, 2), name), heads)
                for head_map, mapped, name in maps
            )
            slots.append(Slots(key_slots, value_slots, empty, heads))
        return slots


class MaxPoolProjection(_MappedWindowProjection):
    """Slot i is, in each dimension of K·W_K or V·W_V, the largest of the real tokens in window i (section 4)."""

    def _reduce(self, windows: Windows, mapped: Tensor, name: str) -> Tensor:
        largest = windows.of(mapped.flatten(2), fill=-math.inf).amax(dim=2)
        largest = largest.masked_fill(windows.empty[..., None], 0.0)
        return largest.unflatten(2, mapped.shape[2:]).transpose(1, 2)


class ConvProjection(LearnedProjection, _MappedWindowProjection):
    """A learned convolution with stride n/k over K·W_K and V·W_V: slot i weighs the tokens of window i (section 4).

    The kernel is ⌈n/k⌉ wide; a shorter window drops its last taps. It has no bias. The parameters are
    `key_projection` and, unless E = F, `value_projection`, each `[head_dim, width]`, for sharing `none` with the heads
    in front. They start as the scaled mean of the window. The kernel is tied to k, so k is one for all heads.
    """

    nested = False

    def __init__(self, seq_len: int, projected_dim: int | Sequence[int], *, head_dim: int, **arguments: Any) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        self.head_dim = head_dim
        self._make_parameters()

    @property
    def _width(self) -> int:
        return -(-self.seq_len // self.projected_dim)

    def _start(self) -> Tensor:
        kernel = torch.full((self.head_dim, self._width), 1 / math.sqrt(self._width))
        return kernel.repeat(self.num_heads, 1, 1) if self.sharing == "none" else kernel

    def _check_head_dim(self, mapped: Tensor) -> None:
        if mapped.shape[3] != self.head_dim:
            raise InputError(f"head_dim: expected {self.head_dim}, as the kernel has, got {mapped.shape[3]}")

    def _kernel(self, name: str) -> Tensor:
        kernel = getattr(self, name)
        kernel = self.key_projection if kernel is None else kernel
        return kernel if self.sharing == "none" else kernel[None]

    def _reduce(self, windows: Windows, mapped: Tensor, name: str) -> Tensor:
        self._check_head_dim(mapped)
        inside = windows.of(mapped.flatten(2)).unflatten(3, mapped.shape[2:])
        taps = self._kernel(name).movedim(-1, 0)[: inside.shape[2]]  # [width, heads or 1, head_dim]
        return (inside * taps.to(inside.dtype)).sum(dim=2).transpose(1, 2)

    def _resize(self, seq_len: int, mode: str) -> None:
        super()._resize(seq_len, mode)
        if mode == "interpolate":
            self._replace_parameters(lambda kernel: stretch_matrix(kernel, -(-seq_len // self.projected_dim)))


class DenseConvProjection(ConvProjection):
    """`ConvProjection` with kernels that also mix the dimensions of a head, `[head_dim out, head_dim in, width]`."""

    def _start(self) -> Tensor:
        kernel = torch.eye(self.head_dim)[..., None] / math.sqrt(self._width) * torch.ones(self._width)
        return kernel.repeat(self.num_heads, 1, 1, 1) if self.sharing == "none" else kernel

    def _reduce(self, windows: Windows, mapped: Tensor, name: str) -> Tensor:
        self._check_head_dim(mapped)
        inside = windows.of(mapped.flatten(2)).unflatten(3, mapped.shape[2:])
        kernel = self._kernel(name).expand(mapped.shape[2], -1, -1, -1).to(inside.dtype)
        return torch.einsum("bswhi,hoiw->bhso", inside, kernel)


def more_windows(projected_dim: int, seq_len: int, new_seq_len: int) -> int:
    """How many windows of the same size tile a longer sequence.

    Raises:
        InputError: if no whole number of them does.
    """
    if projected_dim * new_seq_len % seq_len:
        raise InputError(
            f"seq_len: expected whole windows of {seq_len}/{projected_dim} positions for mode extend, got {new_seq_len}"
        )
    return projected_dim * new_seq_len // seq_len
