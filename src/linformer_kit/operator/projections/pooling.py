"""Projections with pooling over windows: means and maxima (section 4, "general projections").

Axes as in `slots`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from linformer_kit.operator import kernels
from linformer_kit.operator.conditions import is_exporting
from linformer_kit.operator.padding import padding_after, take_positions
from linformer_kit.operator.projections.base import Compressed, Piece
from linformer_kit.operator.projections.windows import WindowProjection, Windows
from linformer_kit.operator.slots import merge_heads


class MeanPoolProjection(WindowProjection):
    """Slot i is the mean of the real tokens in window i (section 4, "general projections")."""

    commutes = True
    supports_sequence_parallel = True

    @property
    def tied(self) -> bool:
        return True

    def reduce(self, windows: Windows, tokens: Tensor, *, values: bool) -> Tensor:
        means = window_means(merge_heads(tokens), windows)
        return means.unflatten(2, (tokens.shape[1], -1)).transpose(1, 2)

    def is_exact_for(self, seq_len: int, slots: int) -> bool:
        return self.shorter_input == "stretch" and seq_len <= slots and not is_exporting()

    def forward(
        self, key: Tensor, value: Tensor, lengths: Tensor | None, slots: int, *, source: Tensor, sums: bool = False
    ) -> Compressed:
        if self.piece is None:
            return super().forward(key, value, lengths, slots, source=source, sums=sums)
        return self._of_pieces(key, value, lengths, slots, self.piece)

    def _of_pieces(self, key: Tensor, value: Tensor, lengths: Tensor | None, slots: int, piece: Piece) -> Compressed:
        """Means from sums and counts over this process's positions, in float32 or wider."""
        batch, _, seq_len, _ = key.shape
        wide = torch.promote_types(key.dtype, torch.float32)
        here = torch.arange(self.seq_len, device=key.device)[piece.positions][:seq_len]
        real = torch.ones(batch, 1, seq_len, 1, dtype=wide, device=key.device)
        if lengths is not None:
            real = real.masked_fill(padding_after(lengths, seq_len)[:, None, :, None], 0.0)
        window = ((here + 1) * slots - 1) // self.seq_len
        parts = [
            tokens.new_zeros(*tokens.shape[:2], slots, tokens.shape[3], dtype=wide).index_add(
                2, window, tokens.to(wide)
            )
            for tokens in (real, key, value)[: 2 if value is key else 3]
        ]
        count, *totals = piece.add(parts)
        means = [(total / count.clamp(min=1)).to(key.dtype) for total in totals]
        return Compressed(means[0], means[-1], sizes=count[:, 0, :, 0].long())


class MaxPoolProjection(WindowProjection):
    """Slot i is the maximum of the real tokens in window i, in each dimension of K·W_K or V·W_V (section 4)."""

    @property
    def tied(self) -> bool:
        return True

    def reduce(self, windows: Windows, tokens: Tensor, *, values: bool) -> Tensor:
        largest = windows.of(merge_heads(tokens), fill=-math.inf).amax(dim=2)
        largest = largest.masked_fill(windows.empty[..., None], 0.0)
        return largest.unflatten(2, (tokens.shape[1], -1)).transpose(1, 2)


def window_means(hidden: Float[Tensor, "batch seq_len embed"], windows: Windows) -> Float[Tensor, "batch slots embed"]:
    """The mean of the real tokens in each window, summed in float32 or wider; 0 for a window without any.

    As products with rows of ones, several times as fast as sums; ones become 2⁻ᶜ, so that no sum overflows.
    """
    positions, real = windows
    inside = take_positions(hidden, positions.flatten(1)).unflatten(1, tuple(positions.shape[1:]))
    scale = 2.0 ** int(real.shape[2]).bit_length()
    ones = (real.to(hidden.dtype) / scale)[:, :, None]
    sums = kernels.widened(torch.matmul, ones, inside)[:, :, 0]
    count = real.sum(dim=2).clamp(min=1)[..., None].to(torch.promote_types(hidden.dtype, torch.float32))
    return (sums * (scale / count)).to(hidden.dtype)
