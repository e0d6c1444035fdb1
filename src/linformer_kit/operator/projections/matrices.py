"""Projections with matrices: learned E and F, a fixed Gaussian R, or matrices that are computed from the tokens.

Learned E and F start by a function of `STARTS` (`projection_initializer`; docs/learning.md compares them). All of them
give rows of norm about 1 for any n and k, so that independent inputs of variance 1 give slots of variance 1.
Exceptions are `normal`, whose row norms grow with n, and `mean_pooling`, whose rows sum to 1.

    pooling          mean pooling over k windows times √(n/k), the same for all heads
    mean_pooling     the means without scaling: for layers whose other weights were trained on tokens (`linearized`)
    shifted_pooling  the default: the windows of each head start a little later than those of the previous head; equal
                     to pooling if heads share a matrix
    normal           N(0, 0.02²), as in the official code

To add one, add a function here, a line in `STARTS`, and a name in `settings.ProjectionInitializer`.

Axes as in `slots`; heads of E and F: 1 if they share a matrix.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linformer_cli.errors import InputError, check_choice, check_input
from linformer_kit.operator.conditions import described
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.padding import real_tokens
from linformer_kit.operator.projections.base import Compressed, LearnedProjection, SequenceProjection, Tokens
from linformer_kit.operator.projections.sizes import stretch_matrix
from linformer_kit.operator.slots import merge_heads

_OFFICIAL_STD = 0.02  # of fairseq's E and F
_DYNAMIC_STD = 1.0  # standard deviation of the initial scores of tokens of variance 1

Matrices = Float[Tensor, "heads slots seq_len"]


def pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    """`pooling_matrix` with rows in `spread_order`, so that the first rows are spread evenly over the sequence."""
    return pooling_matrix(projected_dim, seq_len)[spread_order(projected_dim)].repeat(heads, 1, 1)


def mean_pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    matrices = pooling(heads, projected_dim, seq_len)
    return matrices / matrices.sum(dim=-1, keepdim=True)


def shifted_pooling(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    """The windows of head i are shifted by i/h of a window; the last one wraps around the end."""
    matrices = pooling(heads, projected_dim, seq_len)
    shifted = [matrix.roll(head * seq_len // (projected_dim * heads), dims=1) for head, matrix in enumerate(matrices)]
    return torch.stack(shifted)


def normal(heads: int, projected_dim: int, seq_len: int) -> Matrices:
    return torch.randn(heads, projected_dim, seq_len) * _OFFICIAL_STD


STARTS: dict[str, Callable[[int, int, int], Tensor]] = {
    "pooling": pooling,
    "mean_pooling": mean_pooling,
    "shifted_pooling": shifted_pooling,
    "normal": normal,
}


def pooling_matrix(projected_dim: int, seq_len: int) -> Float[Tensor, "projected seq_len"]:
    """Mean pooling over windows that tile the sequence, scaled to keep the variance.

    Window i has positions ⌊i·n/k⌋ up to ⌊(i+1)·n/k⌋, so any k ≤ n gives exactly k windows, whose sizes differ by at
    most one. Each of the w positions in a window has weight 1/√w, which is the mean times √w: independent inputs of
    variance 1 give slots of variance 1 for any n.
    """
    edges = [slot * seq_len // projected_dim for slot in range(projected_dim + 1)]
    matrix = torch.zeros(projected_dim, seq_len)
    for slot, (start, end) in enumerate(itertools.pairwise(edges)):
        matrix[slot, start:end] = 1 / math.sqrt(end - start)
    return matrix


def spread_order(count: int) -> list[int]:
    """0 … count-1 in bit-reversed order, so that every prefix is spread evenly.

    Example:
        >>> spread_order(8)
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    order = [0]
    while len(order) < count:
        order = [2 * index for index in order] + [2 * index + 1 for index in order]
    return [index for index in order if index < count]


class MatrixProjection(SequenceProjection):
    """E and F are matrices: learned, fixed, or computed from the tokens. A subclass writes `matrices`."""

    commutes = True

    @abstractmethod
    def matrices(
        self, source: Float[Tensor, "batch seq_len embed"], lengths: Int[Tensor, " batch"] | None, slots: int
    ) -> tuple[Tensor, Tensor]:
        """E and F; if E = F, the same tensor twice.

        `[slots, n]`, or `[heads, slots, n]` if not `shared_by_heads`; matrices that depend on the text are
        `[batch, 1, slots, seq_len]`, or then `[batch, heads, slots, seq_len]`.

        Args:
            source: The input of the keys, or what W_K made of it.
            lengths: Number of real tokens of each sequence; None: all.
            slots: k.
        """

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        own = dict((*self.named_parameters(), *self.named_buffers()))
        of_length = {name for name, value in own.items() if self.bounded and value.shape[-1:] == (self.seq_len,)}
        given = {state_dict[prefix + name].shape[-1:] for name in of_length if prefix + name in state_dict}
        if given - {(self.seq_len,)}:
            hint = "build the model with theirs, load them, and change it by `projection.resize`"
            arguments[-1].append(f"{prefix}seq_len: expected weights for {self.seq_len}, got others: {hint}")

    def forward(self, tokens: Tokens, slots: int) -> Compressed:
        seq_len, kernels, lengths = tokens.key.shape[2], tokens.forward_pass.kernels, tokens.forward_pass.lengths
        self._check_length(seq_len, kernels)
        matrices = self.matrices(tokens.source, lengths, slots)
        self._check_shapes(matrices, tokens, slots)
        if kernels.exporting:  # a slice would make the full length a special case
            columns = torch.arange(seq_len, device=tokens.key.device)
            key_matrix, value_matrix = [matrix.index_select(-1, columns) for matrix in matrices]
        else:
            key_matrix, value_matrix = [matrix[..., :seq_len] for matrix in matrices]
        if self.shared_by_heads and key_matrix.dim() == 4:
            key_matrix, value_matrix = key_matrix.squeeze(1), value_matrix.squeeze(1)

        def product(hidden: Tensor, are_values: bool) -> Tensor:
            matrix = value_matrix if are_values else key_matrix
            if not self.shared_by_heads:
                return kernels.widened(torch.matmul, matrix, hidden)
            if not tokens.is_mapped:
                return kernels.compress(matrix, hidden.squeeze(1)).unsqueeze(1)
            return kernels.compress(matrix, merge_heads(hidden)).unflatten(2, (hidden.shape[1], -1)).transpose(1, 2)

        slots_of_both = tokens.map(product, tied=self.tied)
        if tokens.is_mapped:  # with the bias
            return Compressed(*slots_of_both)
        sums = _row_sums(key_matrix, lengths)
        return Compressed(*slots_of_both, (sums, sums if self.tied else _row_sums(value_matrix, lengths)))

    def _check_shapes(self, matrices: tuple[Tensor, Tensor], tokens: Tokens, slots: int) -> None:
        """Raise an error for matrices of other axes than E and F have here."""
        kind, (batch, _, seq_len, _) = type(self).__name__, tokens.key.shape
        is_pair = isinstance(matrices, tuple) and len(matrices) == 2
        if not (is_pair and isinstance(matrices[0], Tensor) and isinstance(matrices[1], Tensor)):
            raise InputError(f"matrices: expected E and F from {kind}, got {described(matrices)}")
        by_head = [] if self.shared_by_heads else [self.num_heads]
        for matrix in matrices:
            *axes, rows, columns = matrix.shape
            by_text = matrix.dim() == 4 and axes[0] == batch and axes[1] in (1, *by_head)
            # An exported program does not depend on the length of the example.
            is_long = tokens.forward_pass.kernels.exporting or columns >= seq_len
            if not (by_text or axes == by_head) or rows != slots or not is_long:
                heads = f"1 or {self.num_heads}" if by_head else "1"
                expected = f"{[*by_head, slots, seq_len]}, or [{batch}, {heads}, {slots}, {seq_len}] from {kind}"
                raise InputError(f"matrices: expected {expected}, got {list(matrix.shape)}")
        if self.tied and matrices[0] is not matrices[1]:
            raise InputError(f"matrices: expected E twice from {kind}, whose E = F, got two matrices")


class LinearProjection(LearnedProjection, MatrixProjection):
    """Learned E and F: each slot is a weighted sum of all positions (equation 7).

    The parameters are `key_projection` (E) and, unless E = F, `value_projection` (F), each `[projected_dim, seq_len]`.
    For sharing `none` there is a first axis of heads. A head with a smaller k uses the first rows.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        check_choice("projection_initializer", named.get("initializer", "shifted_pooling"), STARTS)
        super().__init__(*arguments, **named)

    def _start(self) -> Tensor:
        start = STARTS[self.initializer]
        if self.shared_by_heads:
            return start(1, self.projected_dim, self.seq_len)[0]
        # The start of a head depends on its index and its own k, not on the k of the others.
        matrices = torch.zeros(self.num_heads, self.projected_dim, self.seq_len)
        for k in set(self.head_dims):
            heads = [head for head, dim in enumerate(self.head_dims) if dim == k]
            matrices[heads, :k] = start(self.num_heads, k, self.seq_len)[heads]
        return matrices

    def matrices(self, source: Tensor, lengths: Tensor | None, slots: int) -> tuple[Tensor, Tensor]:
        key: Tensor = self.key_projection
        value: Tensor | None = self.value_projection
        if slots < self.projected_dim:
            key, value = key[..., :slots, :], None if value is None else value[..., :slots, :]
        return key, key if value is None else value

    def change_length(self, seq_len: int, mode: str) -> None:
        if mode == "interpolate":
            self._replace_parameters(lambda matrix: stretch_matrix(matrix, seq_len))
        else:
            old = self.seq_len
            self._replace_parameters(lambda matrix: matrix[..., torch.arange(seq_len, device=matrix.device) % old])


class RandomProjection(MatrixProjection):
    """E = F = R with independent entries N(0, 1/k), fixed: the matrix of Theorems 1 and 2.

    R is the buffer `matrix`, `[projected_dim, seq_len]`, saved with the model. All heads share it with any sharing;
    `layerwise` shares it over layers too. Fewer slots k' are the first rows times √(k/k'), again N(0, 1/k'). Its
    columns are independent, and a longer R gets new ones.
    """

    matrix: Tensor

    def __init__(self, seq_len: int, projected_dim: int | Sequence[int], **arguments: Any) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        self.register_buffer("matrix", self._draw(seq_len))

    def initial_values(self) -> dict[str, Tensor]:
        return {"matrix": self._draw(self.seq_len)}

    def _draw(self, columns: int) -> Tensor:
        return torch.randn(self.projected_dim, columns) / math.sqrt(self.projected_dim)

    def matrices(self, source: Tensor, lengths: Tensor | None, slots: int) -> tuple[Tensor, Tensor]:
        matrix = self.matrix[:slots]
        if slots < self.projected_dim:
            matrix = matrix * math.sqrt(self.projected_dim / slots)
        return matrix, matrix

    def change_length(self, seq_len: int, mode: str) -> None:
        new = self._draw(max(0, seq_len - self.seq_len)).to(self.matrix)
        self.matrix = torch.cat([self.matrix[:, :seq_len], new], dim=1)


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
    always_tied = True

    @property
    def embed_dim(self) -> int:
        """The width of X."""
        check_input(self.head_dim is not None, "head_dim", "the width of a head", self.head_dim)
        return self.num_heads * cast(int, self.head_dim)

    def _start(self) -> Tensor:
        heads = () if self.shared_by_heads else (self.num_heads,)
        return torch.randn(*heads, self.projected_dim, self.embed_dim) * (_DYNAMIC_STD * self.embed_dim**-0.5)

    def matrices(self, source: Tensor, lengths: Tensor | None, slots: int) -> tuple[Tensor, Tensor]:
        """Pᵀ of each sequence, `[batch, heads, slots, seq_len]`, heads 1 if shared, with zeros at padding."""
        if source.shape[2] != self.embed_dim:
            raise InputError(f"embed_dim: expected {self.embed_dim}, as W_P has, got {source.shape[2]}")
        rows = self.key_projection[..., :slots, :]
        scores = choose(source).compress(rows.flatten(0, -2), source.transpose(1, 2))
        if lengths is None:
            weights = scores.softmax(dim=-1)
        else:
            padding = ~real_tokens(lengths, source.shape[1])[:, None]
            # Not minus infinity, which makes the softmax of a text of padding only NaN until the second mask.
            masked = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
            weights = masked.softmax(dim=-1).masked_fill(padding, 0.0)
        weights = weights.unflatten(1, (-1, slots))
        return weights, weights


def _row_sums(matrix: Tensor, lengths: Tensor | None) -> Tensor:
    """E·r."""
    if lengths is None:
        return matrix.sum(dim=-1)
    real = real_tokens(lengths, matrix.shape[-1]).to(matrix.dtype)
    return real @ matrix.T if matrix.dim() == 2 else torch.matmul(matrix, real[..., None]).squeeze(-1)
