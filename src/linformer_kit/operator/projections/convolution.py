"""Projections with a learned convolution of stride n/k (section 4, "general projections").

Axes as in `slots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.operator.projections.base import LearnedProjection
from linformer_kit.operator.projections.resampling import stretch_matrix
from linformer_kit.operator.projections.windows import WindowProjection, Windows
from linformer_kit.operator.slots import merge_heads


class ConvProjection(LearnedProjection, WindowProjection):
    """A learned convolution with stride n/k over K·W_K and V·W_V: slot i weighs the tokens of window i (section 4).

    The kernel has width ⌈n/k⌉; shorter windows drop its last taps. There is no bias. The parameters are
    `key_projection` and, unless E = F, `value_projection`, each `[head_dim, width]`, for sharing `none` with a first
    axis of heads. They are initialised to the scaled mean of the window. The kernel needs the same k for all heads.
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

    def reduce(self, windows: Windows, tokens: Tensor, *, values: bool) -> Tensor:
        heads, dim = tokens.shape[1], tokens.shape[3]
        if dim != self.head_dim:
            raise InputError(f"head_dim: expected {self.head_dim}, as the kernel has, got {dim}")
        kernel = self.value_projection if values and self.value_projection is not None else self.key_projection
        inside = windows.of(merge_heads(tokens)).unflatten(3, (heads, dim))
        by_head = kernel if self.sharing == "none" else kernel[None]
        taps = by_head.movedim(-1, 0)[: inside.shape[2]]  # [width, heads or 1, head_dim]
        return (inside * taps.to(inside.dtype)).sum(dim=2).transpose(1, 2)

    def _resize(self, seq_len: int, mode: str) -> None:
        super()._resize(seq_len, mode)
        if mode == "interpolate":
            self._replace_parameters(lambda kernel: stretch_matrix(kernel, -(-seq_len // self.projected_dim)))
