"""Projections with pooling over windows: means and maxima (section 4, "general projections").

Axes as in `slots`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from linformer_kit.operator import kernels
from linformer_kit.operator.projections.base import Inputs, Piece
from linformer_kit.operator.projections.head_maps import of_heads
from linformer_kit.operator.projections.sizes import HeadGroups
from linformer_kit.operator.projections.windows import MappedWindowProjection, WindowProjection, Windows
from linformer_kit.operator.slots import Slots


class _Pooled(NamedTuple):
    """Windows of a number of slots, reduced to their means."""

    means: list[Tensor]  # of each tensor of tokens
    empty: Tensor | None  # the mask of empty slots
    sizes: Tensor  # real tokens of each window


class MeanPoolProjection(WindowProjection):
    """Slot i is the mean of the real tokens in window i (section 4, "general projections")."""

    supports_sequence_parallel = True

    def forward(self, inputs: Inputs, groups: HeadGroups | None = None) -> list[Slots]:
        inputs, groups = self._prepared(inputs, groups)
        tokens = [inputs.key] if inputs.value is inputs.key else [inputs.key, inputs.value]
        if self.piece is None:
            pooled = [self._means(k, tokens, inputs) for k, _ in groups.groups]
        else:
            pooled = self._means_of_pieces([k for k, _ in groups.groups], tokens, inputs.mask, self.piece)
        return [
            Slots(
                of_heads(inputs.key_map.of_compressed(means[0]), heads, 1),
                of_heads(inputs.value_map.of_compressed(means[-1]), heads, 1),
                empty,
                heads,
                sizes=sizes,
            )
            for (_, heads), (means, empty, sizes) in zip(groups.groups, pooled, strict=True)
        ]

    def keeps_tokens(self, length: int, groups: HeadGroups | None = None) -> bool:
        dims = self.head_dims if groups is None else groups.dims
        return self.shorter_input == "stretch" and length <= min(dims)

    def _means(self, slots: int, tokens: list[Tensor], inputs: Inputs) -> _Pooled:
        windows, empty = self._windows(slots, tokens[0], inputs.lengths)
        means = [kernels.window_means(hidden, windows.positions, windows.real) for hidden in tokens]
        return _Pooled(means, empty, windows.sizes)

    def _means_of_pieces(
        self, slots: list[int], tokens: list[Tensor], padding_mask: Tensor | None, piece: Piece
    ) -> list[_Pooled]:
        """As `_means` for several numbers of slots, from sums and counts over this process's positions."""
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
        pooled = []
        for start in range(0, len(sums), size):
            count, *totals = sums[start : start + size]
            means = [(total / count.clamp(min=1)).to(hidden.dtype) for total in totals]
            pooled.append(_Pooled(means, count[..., 0] == 0, count[..., 0].long()))
        return pooled


class MaxPoolProjection(MappedWindowProjection):
    """Slot i is the maximum of the real tokens in window i, in each dimension of K·W_K or V·W_V (section 4)."""

    def _reduce(self, windows: Windows, mapped: Tensor, name: str) -> Tensor:
        largest = windows.of(mapped.flatten(2), fill=-math.inf).amax(dim=2)
        largest = largest.masked_fill(windows.empty[..., None], 0.0)
        return largest.unflatten(2, mapped.shape[2:]).transpose(1, 2)
