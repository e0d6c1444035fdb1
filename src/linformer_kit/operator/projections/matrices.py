"""Projections with a matrix: learned E and F, or a fixed Gaussian R.

Axes as in `slots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linformer_kit.operator import kernels
from linformer_kit.operator.projections.base import Inputs, LearnedProjection, SequenceProjection
from linformer_kit.operator.projections.head_maps import HeadMap, of_heads
from linformer_kit.operator.projections.resampling import stretch_matrix, stretch_to_lengths, stretch_tokens
from linformer_kit.operator.projections.sizes import HeadGroups
from linformer_kit.operator.projections.starts import STARTS, check_start
from linformer_kit.operator.slots import Slots
from linformer_kit.operator.values import is_exporting


class MatrixProjection(SequenceProjection):
    """E and F are matrices: learned, fixed, or computed from the tokens."""

    supports_sequence_parallel = True

    @property
    def by_head(self) -> bool:
        """Whether each head has its own matrices."""
        return False

    def of_positions(self) -> dict[str, Tensor]:
        return dict((*self.named_parameters(), *self.named_buffers()))

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """E and F; the same tensor object if E = F."""
        raise NotImplementedError

    def _scale(self, slots: int) -> float:
        """Factor of the first rows if a head has fewer slots than the matrix has rows."""
        return 1.0

    def forward(self, inputs: Inputs, groups: HeadGroups | None = None) -> list[Slots]:
        inputs, groups = self._prepared(inputs, groups)
        key_matrix, value_matrix, inputs = self._for_length(inputs, groups)
        if self._maps_first(inputs, groups):
            return self._project_mapped(key_matrix, value_matrix, inputs, groups)
        # (E·X)·W + (E·m)⊗b equals E·(X·W + m⊗b), with W on k rows instead of n; E·X is computed once if E·X = F·X.
        key, value, key_map, value_map, *_ = inputs
        tied = value_matrix is key_matrix and value is key
        key_matrix = key_matrix[..., : groups.most, :]
        parts = [kernels.compress(key_matrix, key), _row_sums(key_matrix, inputs.mask)]
        if not tied:
            value_matrix = value_matrix[..., : groups.most, :]
            parts += [kernels.compress(value_matrix, value), _row_sums(value_matrix, inputs.mask)]
        sums = self._added(parts)
        (compressed_key, key_sums), (compressed_value, value_sums) = sums[:2], sums[-2:]
        key_slots = self._by_group(key_map, compressed_key, key_sums, groups)
        value_slots = self._by_group(value_map, compressed_value, value_sums, groups)
        return [
            Slots(key_of_group, value_of_group, None, heads)
            for (_, heads), key_of_group, value_of_group in zip(groups.groups, key_slots, value_slots, strict=True)
        ]

    def _maps_first(self, inputs: Inputs, groups: HeadGroups) -> bool:
        """Whether W runs before E: if each head has its own E, or there are not more tokens than slots."""
        # With sequence parallelism, all processes must use the same order, whatever the lengths of their pieces.
        whole = self.piece is None and not is_exporting()
        few = whole and inputs.key.shape[1] <= groups.most
        return self.by_head or (few and inputs.key_map.commutes and inputs.value_map.commutes)

    def _project_mapped(
        self, key_matrix: Tensor, value_matrix: Tensor, inputs: Inputs, groups: HeadGroups
    ) -> list[Slots]:
        """E·(X·W + m⊗b), as in the paper."""
        key_map, value_map = inputs.key_map, inputs.value_map
        maps = (
            (key_matrix, key_map(inputs.key, inputs.mask).transpose(1, 2)),
            (value_matrix, value_map(inputs.value, inputs.mask).transpose(1, 2)),
        )
        products = self._added(
            [
                kernels.widened(torch.matmul, self._rows(matrix, k, heads), of_heads(mapped, heads, 1))
                for k, heads in groups.groups
                for matrix, mapped in maps
            ]
        )
        return [
            Slots(key_map.add_bias(key_slots, heads), value_map.add_bias(value_slots, heads), None, heads)
            for (_, heads), key_slots, value_slots in zip(groups.groups, products[::2], products[1::2], strict=True)
        ]

    def _for_length(self, inputs: Inputs, groups: HeadGroups) -> tuple[Tensor, Tensor, Inputs]:
        """E and F with a column for each token: the first columns, stretched ones, or all with spread tokens."""
        key_matrix, value_matrix = self._matrices()
        tied = value_matrix is key_matrix
        if self.stretches and self.shorter_input == "stretch":
            if _spreads_tokens(key_matrix, inputs):
                inputs = self._spread(inputs)
            else:
                key_matrix = self._stretched(key_matrix, inputs)
                value_matrix = key_matrix if tied else self._stretched(value_matrix, inputs)
                inputs = inputs._replace(padding=None)  # the columns of padding are zero
        length = inputs.key.shape[1]
        key_matrix = _first_columns(key_matrix, length)
        return key_matrix, key_matrix if tied else _first_columns(value_matrix, length), inputs

    def _by_group(self, head_map: HeadMap, compressed: Tensor, row_sums: Tensor, groups: HeadGroups) -> list[Tensor]:
        """Mapped slots of each group of heads: the first rows of one product, or with a scale one product per group."""
        scales = [self._scale(k) for k, _ in groups.groups]
        if set(scales) == {1}:
            slots = head_map.of_compressed(compressed, row_sums)
            return [of_heads(slots, heads, 1)[:, :, :k] for k, heads in groups.groups]
        return [
            of_heads(head_map.of_compressed(compressed[:, :k] * scale, row_sums[..., :k] * scale), heads, 1)
            for (k, heads), scale in zip(groups.groups, scales, strict=True)
        ]

    def _stretched(self, matrix: Tensor, inputs: Inputs) -> Tensor:
        """E resampled to the length of the texts; one matrix per sequence if the lengths may differ."""
        length = inputs.key.shape[1]
        if inputs.lengths is not None:
            return stretch_to_lengths(matrix, inputs.lengths, length)
        return matrix if length == self.seq_len else stretch_matrix(matrix, length)

    def _spread(self, inputs: Inputs) -> Inputs:
        """Spread all texts over n positions, the number of columns of E."""
        key, value, lengths = inputs.key, inputs.value, inputs.lengths
        if lengths is None:
            lengths = torch.full((1,), key.shape[1], device=key.device)
        spread = stretch_tokens(key, lengths, self.seq_len)
        other = spread if value is key else stretch_tokens(value, lengths, self.seq_len)
        return inputs._replace(key=spread, value=other, padding=None)

    def _rows(self, matrix: Tensor, slots: int, heads: list[int] | None) -> Tensor:
        """The matrices of some heads, `[*batch, heads, slots, length]`; heads is 1 if they share one matrix."""
        if not self.by_head:
            rows = matrix[..., None, :slots, :]
            return rows if self._scale(slots) == 1 else rows * self._scale(slots)
        if self.uniform:
            rows = matrix[..., :slots, :]
            return rows if heads is None else rows[..., heads, :, :]
        matrices = matrix.split(self.head_dims, dim=-2)
        return torch.stack([matrices[head][..., :slots, :] for head in heads or range(self.num_heads)], dim=-3)


class LinearProjection(LearnedProjection, MatrixProjection):
    """Learned E and F: each slot is a weighted sum of all positions (equation 7).

    The parameters are `key_projection` (E) and, unless E = F, `value_projection` (F), each `[projected_dim, seq_len]`.
    For sharing `none` there is a first axis of heads or, if they differ in k, the matrices are concatenated along the
    slots, `[sum of k, seq_len]`. For any other sharing, a head with a smaller k uses the first rows.

    Args:
        initializer: Initialisation of E and F (`starts`).
    """

    def __init__(
        self,
        seq_len: int,
        projected_dim: int | Sequence[int],
        *,
        initializer: str = "shifted_pooling",
        **arguments: Any,
    ) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        check_start(initializer)
        self.initializer = initializer
        self._make_parameters()

    @property
    def by_head(self) -> bool:
        return self.sharing == "none"

    def _start(self) -> Tensor:
        start = STARTS[self.initializer]
        if not self.by_head:
            return start(1, self.projected_dim, self.seq_len)[0]
        if self.uniform:
            return start(self.num_heads, self.projected_dim, self.seq_len)
        # The start of a head depends on its index and its own k, not on the k of the others.
        return torch.cat([start(self.num_heads, k, self.seq_len)[head] for head, k in enumerate(self.head_dims)])

    def _matrices(self) -> tuple[Tensor, Tensor]:
        return self.key_projection, self.key_projection if self.value_projection is None else self.value_projection

    def _resize(self, seq_len: int, mode: str) -> None:
        if mode == "interpolate":
            self._replace_parameters(lambda matrix: stretch_matrix(matrix, seq_len))
        else:
            old = self.seq_len
            self._replace_parameters(lambda matrix: matrix[..., torch.arange(seq_len, device=matrix.device) % old])


class RandomProjection(MatrixProjection):
    """E = F = R with independent entries N(0, 1/k), fixed: the matrix of Theorems 1 and 2.

    R is the buffer `matrix`, `[projected_dim, seq_len]`, saved with the model. All heads share it with any sharing;
    `layerwise` shares it over layers too. Fewer slots k' are the first rows times √(k/k'), again N(0, 1/k'). Its
    columns are independent, so R is never stretched, and a longer R gets new columns.
    """

    stretches = False
    matrix: Tensor

    def __init__(self, seq_len: int, projected_dim: int | Sequence[int], **arguments: Any) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        self.register_buffer("matrix", self._draw(seq_len))

    def initial_values(self) -> dict[str, Tensor]:
        return {"matrix": self._draw(self.seq_len)}

    def _draw(self, columns: int) -> Tensor:
        return torch.randn(self.projected_dim, columns) / math.sqrt(self.projected_dim)

    def _matrices(self) -> tuple[Tensor, Tensor]:
        return self.matrix, self.matrix

    def _scale(self, slots: int) -> float:
        return math.sqrt(self.projected_dim / slots)

    def _resize(self, seq_len: int, mode: str) -> None:
        new = self._draw(max(0, seq_len - self.seq_len)).to(self.matrix)
        self.matrix = torch.cat([self.matrix[:, :seq_len], new], dim=1)


def _first_columns(matrix: Tensor, length: int) -> Tensor:
    if is_exporting():  # a slice would make the full length a special case
        return matrix.index_select(-1, torch.arange(length, device=matrix.device))
    return matrix[..., :length]


def _spreads_tokens(matrix: Tensor, inputs: Inputs) -> bool:
    """How to stretch: True to spread texts over n positions, False to resample E to the length of each text.

    An exported program spreads texts, since it runs with all lengths and int8 needs a constant E. Else the sizes of
    the spread texts and of the resampled E decide; a number of E costs about twice as much (reproduce/LOG.md).
    """
    if is_exporting():
        return True
    if inputs.lengths is None:
        return False
    length, width = inputs.key.shape[1:]
    return 2 * length * math.prod(matrix.shape[:-1]) > matrix.shape[-1] * width


def _row_sums(matrix: Tensor, padding_mask: Tensor | None) -> Tensor:
    """E·m, with m 1 on real tokens and 0 on padding."""
    if padding_mask is None:
        return matrix.sum(dim=-1)
    return (~padding_mask).to(matrix.dtype) @ matrix.T
