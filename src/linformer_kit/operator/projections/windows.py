"""Windows that tile a sequence, and base classes of projections with windows.

Axes as in `slots`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.operator.conditions import is_exporting
from linformer_kit.operator.padding import take_positions
from linformer_kit.operator.projections.base import SequenceProjection


class Windows(NamedTuple):
    """Windows over right-padded sequences: their positions, and which of these are real."""

    positions: Int[Tensor, "batch_or_1 slots window"]
    real: Bool[Tensor, "batch_or_1 slots window"]

    @property
    def sizes(self) -> Int[Tensor, "batch_or_1 slots"]:
        """The number of real tokens in each window."""
        return self.real.sum(-1)

    @property
    def empty(self) -> Bool[Tensor, "batch_or_1 slots"]:
        """True for a slot without any real token."""
        return ~self.real[..., 0]

    def of(
        self, hidden: Float[Tensor, "batch seq_len embed"], fill: float = 0.0
    ) -> Float[Tensor, "batch slots window embed"]:
        """The tokens in each window; `fill` at positions without a real token."""
        inside = take_positions(hidden, self.positions.flatten(1)).unflatten(1, tuple(self.positions.shape[1:]))
        return inside.masked_fill(~self.real[..., None], fill)


def pooling_windows(
    projected_dim: int,
    max_seq_len: int,
    seq_len: int,
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    stretch: bool = False,
    count: int | None = None,
    device: torch.device | None = None,
) -> Windows:
    """The windows of pooling and convolution: exactly k windows tile the sequence, and sizes differ by at most one.

    Window i has positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋ of n. A text of m < n tokens keeps these windows and fills only the
    first ones, the last of them maybe partly; or, with `stretch`, min(k, m) windows tile the m tokens.

    Args:
        projected_dim: k.
        max_seq_len: n.
        seq_len: Positions in the batch, padding included.
        lengths: Real tokens at the start of each sequence; default: all are real.
        stretch: Whether the windows tile the real tokens instead of n positions.
        count: Number of windows to return; default: as many as seq_len positions can fill.
        device: Device of the result if lengths is None.
    """
    real = torch.full((1,), seq_len, device=device) if lengths is None else lengths
    tiled: int | Tensor = max_seq_len
    windows: int | Tensor = projected_dim
    fillable = -(-seq_len * projected_dim // max_seq_len)
    longest = max_seq_len
    if stretch:
        if not is_exporting():  # an exported program must not depend on the length
            longest = max(1, seq_len)
        tiled, windows = real[:, None], real.clamp(min=1, max=projected_dim)[:, None]
        fillable = min(projected_dim, seq_len)
    edges = torch.arange((fillable if count is None else count) + 1, device=real.device) * tiled // windows
    edges = torch.minimum(edges.expand(real.shape[0], -1), real[:, None])
    positions = edges[:, :-1, None] + torch.arange(-(-longest // projected_dim), device=real.device)
    return Windows(positions.clamp(max=seq_len - 1), positions < edges[:, 1:, None])


class WindowProjection(SequenceProjection):
    """Slot i is computed from window i of the k windows that tile the sequence. A subclass writes `reduce`."""

    windowed = True

    def reduce(
        self, windows: Windows, tokens: Float[Tensor, "batch heads seq_len dim"], *, values: bool
    ) -> Float[Tensor, "batch heads slots dim"]:
        """Reduce the tokens in each window to a slot."""
        raise NotImplementedError

    def compress(self, tokens: Tensor, lengths: Tensor | None, slots: int, *, values: bool = False) -> Tensor:
        return self.reduce(self._windows(tokens.shape[2], lengths, slots, tokens.device), tokens, values=values)

    def sizes(self, seq_len: int, lengths: Tensor | None, slots: int, device: torch.device) -> Tensor:
        return self._windows(seq_len, lengths, slots, device).sizes

    def _windows(self, seq_len: int, lengths: Tensor | None, slots: int, device: torch.device) -> Windows:
        return pooling_windows(
            slots,
            self.seq_len,
            seq_len,
            lengths,
            stretch=self.shorter_input == "stretch",
            count=slots if is_exporting() else None,
            device=device,
        )

    def check_resize(self, seq_len: int, mode: str) -> None:
        super().check_resize(seq_len, mode)
        if mode == "extend":
            for k in self.head_dims:
                more_windows(k, self.seq_len, seq_len)

    def _resize(self, seq_len: int, mode: str) -> None:
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
