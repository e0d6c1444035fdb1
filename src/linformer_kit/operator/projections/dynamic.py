"""The dynamic projection: matrices that are computed from the tokens.

Axes as in `slots`; rows are slots, or heads and slots.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.padding import padding_after
from linformer_kit.operator.projections.base import LearnedProjection
from linformer_kit.operator.projections.matrices import MatrixProjection

_START = 1.0  # standard deviation of the initial scores of tokens of variance 1


class DynamicProjection(LearnedProjection, MatrixProjection):
    """Slots that follow the content: Pᵀ·K and Pᵀ·V with P = softmax(X·W_P) over the real tokens, one column a slot.

    X is the input of the keys, before W_K (in a linearised model, whose keys arrive mapped, the mapped keys). Keys and
    values have the same P, so E = F = Pᵀ with any sharing: `none` has a P for each head; `headwise` and `key_value` are
    the same here, one P for all heads of a layer; `layerwise` has one W_P for all layers, each with its own X.

    The parameter `key_projection` is W_Pᵀ, `[projected_dim, embed]`, for sharing `none` with a first axis of heads; a
    head with a smaller k uses the first rows. Nothing depends on a position: sequences may be longer than seq_len,
    which may be None.

    Source: Zhu et al. 2021 (Long-Short Transformer, arXiv 2107.02192), "Long-range attention via dynamic projections".
    """

    bounded = False
    tied = True  # type: ignore[assignment]

    @property
    def embed_dim(self) -> int:
        """The width of X."""
        check_input(self.head_dim is not None, "head_dim", "the width of a head", self.head_dim)
        return self.num_heads * cast(int, self.head_dim)

    def _start(self) -> Tensor:
        heads = () if self.shared_by_heads else (self.num_heads,)
        return torch.randn(*heads, self.projected_dim, self.embed_dim) * (_START * self.embed_dim**-0.5)

    def matrices(self, source: Tensor, lengths: Tensor | None, slots: int) -> tuple[Tensor, Tensor]:
        """Pᵀ of each sequence, `[batch, *heads, slots, seq_len]`, with zeros at padding."""
        if source.shape[2] != self.embed_dim:
            raise InputError(f"embed_dim: expected {self.embed_dim}, as W_P has, got {source.shape[2]}")
        rows = self.key_projection[..., :slots, :]
        scores = choose(source).compress(rows.flatten(0, -2), source.transpose(1, 2))
        if lengths is None:
            weights = scores.softmax(dim=-1)
        else:
            padding = padding_after(lengths, source.shape[1])[:, None]
            # Not minus infinity, which makes the softmax of a text of padding only NaN until the second mask.
            masked = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
            weights = masked.softmax(dim=-1).masked_fill(padding, 0.0)
        weights = weights.unflatten(1, rows.shape[:-1])
        return weights, weights

    def _resize(self, seq_len: int, mode: str) -> None:
        """Nothing depends on the length."""
