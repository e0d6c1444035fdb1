"""The dynamic projection: matrices that are computed from the tokens.

Axes as in `slots`; rows are slots, or heads and slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_kit.operator import kernels
from linformer_kit.operator.projections.base import Inputs, LearnedProjection
from linformer_kit.operator.projections.matrices import MatrixProjection
from linformer_kit.operator.projections.sizes import HeadGroups

_START = 1.0  # standard deviation of the initial scores of tokens of variance 1


class DynamicProjection(LearnedProjection, MatrixProjection):
    """Slots that follow the content: Pᵀ·K and Pᵀ·V with P = softmax(X·W_P) over the real tokens, one column a slot.

    X is the input of the keys, before W_K (in a linearised model, whose keys arrive mapped, the mapped keys). Keys and
    values have the same P, so E = F = Pᵀ with any sharing: `none` has a P for each head; `headwise` and `key_value` are
    the same here, one P for all heads of a layer; `layerwise` has one W_P for all layers, each with its own X.

    The parameter `key_projection` is W_Pᵀ, `[projected_dim, embed]`, for sharing `none` with a first axis of heads or,
    if they differ in k, concatenated along the slots, `[sum of k, embed]`; as in `LinearProjection`, a head with a
    smaller k uses the first rows of a shared one. Nothing depends on a position: sequences may be longer than seq_len,
    which may be None, and shorter_input has no effect.

    Args:
        head_dim: Width of a head; the width of X is num_heads·head_dim.

    Source: Zhu et al. 2021 (Long-Short Transformer, arXiv 2107.02192), "Long-range attention via dynamic projections".
    """

    bounded = False
    stretches = False

    def __init__(
        self, seq_len: int | None, projected_dim: int | Sequence[int], *, head_dim: int, **arguments: Any
    ) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        self.embed_dim = self.num_heads * head_dim
        self._make_parameters()

    @property
    def tied(self) -> bool:
        return True

    @property
    def by_head(self) -> bool:
        return self.sharing == "none"

    def _start(self) -> Tensor:
        if not self.by_head:
            rows: tuple[int, ...] = (self.projected_dim,)
        elif self.uniform:
            rows = (self.num_heads, self.projected_dim)
        else:
            rows = (sum(self.head_dims),)
        return torch.randn(*rows, self.embed_dim) * (_START * self.embed_dim**-0.5)

    def _for_length(self, inputs: Inputs, groups: HeadGroups) -> tuple[Tensor, Tensor, Inputs]:
        weights = self._position_weights(inputs, groups.most)
        return weights, weights, inputs._replace(padding=None)  # the columns of padding are zero

    def _position_weights(self, inputs: Inputs, slots: int) -> Tensor:
        """Pᵀ of each sequence, `[batch, *rows, length]`, with at most this number of slots where each is a row."""
        tokens = inputs.key if inputs.unmapped is None else inputs.unmapped
        if tokens.shape[2] != self.embed_dim:
            raise InputError(f"embed_dim: expected {self.embed_dim}, as W_P has, got {tokens.shape[2]}")
        separate = self.by_head and not self.uniform
        rows = self.key_projection if separate else self.key_projection[..., :slots, :]
        scores = kernels.compress(rows.flatten(0, -2), tokens.transpose(1, 2))
        if inputs.mask is None:
            weights = self._softmax(scores)
        else:
            padding = inputs.mask[:, None]
            # Not minus infinity, which makes the softmax of a text of padding only NaN until the second mask.
            masked = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
            weights = self._softmax(masked).masked_fill(padding, 0.0)
        return weights.unflatten(1, rows.shape[:-1])

    def _softmax(self, scores: Tensor) -> Tensor:
        """The softmax over all positions, of which this process may have only a piece."""
        if self.piece is None:
            return scores.softmax(dim=-1)
        exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
        shares = (exact - self.piece.most(exact.detach().amax(dim=-1, keepdim=True))).exp()
        (total,) = self.piece.add([shares.sum(dim=-1, keepdim=True)])
        return (shares / total).to(scores.dtype)

    def of_positions(self) -> dict[str, Tensor]:
        return {}  # W_P has a column for each dimension of a token

    def _resize(self, seq_len: int, mode: str) -> None:
        """Nothing depends on the length."""
