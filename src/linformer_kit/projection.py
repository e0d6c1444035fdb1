"""The maps of n positions to k slots, and how layers and heads share them (section 4 of the paper).

A projection is a module called with the *inputs* of keys and values and with the linear maps W_K and W_V, because the
order of the multiplications is its own business: E·(X·W) and (E·X)·W are the same number at very different cost.
A new projection is a new class here, a new line in `PROJECTIONS`, and a new name in `settings.Projection`.

    LinearProjection       E and F are learned                      E·(X·W) is computed as (E·X)·W
    RandomProjection       E = F = R, Gaussian and fixed            likewise
    MeanPoolProjection     means over k windows                     likewise
    MaxPoolProjection      maxima over k windows, after W
    ConvProjection         k windows under a learned kernel for each dimension of a head, after W
    DenseConvProjection    likewise, with a kernel that mixes the dimensions of a head

Axes as in `functional`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.functional import (
    Windows,
    padding_after,
    pooling_matrix,
    pooling_windows,
    split_heads,
    spread_order,
    stretch_matrix,
    zero_padding,
)
from linformer_kit.settings import BiasOrder, ResizeMode, Sharing, ShorterInput

SHARINGS = get_args(Sharing)
BIAS_ORDERS = get_args(BiasOrder)
SHORTER_INPUTS = get_args(ShorterInput)
RESIZE_MODES = get_args(ResizeMode)

Groups = list[tuple[int, list[int] | None]]  # heads by their number of slots, the largest first; None: all heads


class Slots(NamedTuple):
    """Projected keys and values of the heads that have one number of slots."""

    key: Float[Tensor, "batch heads slots head_dim"]
    value: Float[Tensor, "batch heads slots head_dim"]
    empty: Bool[Tensor, "batch_or_1 slots"] | None  # True for a slot without any real token; None: there is none
    heads: list[int] | None  # None: all of them


class SequenceProjection(nn.Module):
    """What all projections have in common: sizes, sharing, and heads in groups of equal k.

    Args:
        seq_len: n, the longest sequence.
        projected_dim: k, the number of slots, from 1 to seq_len; or one for each head.
        num_heads: h.
        sharing: `none`: E and F for each head; `headwise`: E and F for all heads; `key_value` and `layerwise`: one
            for both, E = F. With `layerwise` the same module serves every layer; its owner passes it on. Where a
            projection has no parameters, sharing changes nothing.
        shorter_input: What becomes of m < n real tokens. `prefix`: the first m columns of E, the first windows.
            `stretch`: E is resampled to m columns (`functional.stretch_matrix`), min(k, m) windows tile the m tokens.

    Raises:
        InputError: for a projected_dim outside 1 … seq_len, an unknown sharing or shorter_input.
    """

    nested = True  # whether heads may have fewer slots than others and than there are
    stretches = True  # whether shorter_input makes a difference
    windowed = False  # whether slots are windows, which become more when a model is extended

    def __init__(
        self,
        seq_len: int,
        projected_dim: int | Sequence[int],
        *,
        num_heads: int,
        sharing: str = "headwise",
        shorter_input: str = "prefix",
    ) -> None:
        super().__init__()
        if sharing not in SHARINGS:
            raise InputError(f"sharing: expected one of {', '.join(SHARINGS)}, got {sharing!r}")
        if shorter_input not in SHORTER_INPUTS:
            raise InputError(f"shorter_input: expected one of {', '.join(SHORTER_INPUTS)}, got {shorter_input!r}")
        self.seq_len = seq_len
        self.head_dims = slots_by_head(projected_dim, num_heads, limit=seq_len, limited_by="the longest sequence")
        self.sharing = sharing
        self.shorter_input = shorter_input
        if not self.nested:
            self._require_uniform(self.head_dims)

    @property
    def projected_dim(self) -> int:
        """The largest k."""
        return max(self.head_dims)

    @property
    def num_heads(self) -> int:
        return len(self.head_dims)

    @property
    def tied(self) -> bool:
        """Whether E = F."""
        return self.sharing in ("key_value", "layerwise")

    @property
    def uniform(self) -> bool:
        """Whether all heads have one k."""
        return len(set(self.head_dims)) == 1

    def initial_values(self) -> dict[str, Tensor]:
        """The start of every parameter and buffer, by name."""
        return {}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start anew; what is drawn is drawn again."""
        for name, value in self.initial_values().items():
            getattr(self, name).copy_(value)

    def matrix_count(self) -> int:
        """Number of learned n → k maps in here, as section 4 of the paper counts them."""
        if next(self.parameters(), None) is None:
            return 0
        return (self.num_heads if self.sharing == "none" else 1) * (1 if self.tied else 2)

    def extra_repr(self) -> str:
        slots = self.projected_dim if self.uniform else list(self.head_dims)
        return f"{self.seq_len} -> {slots}, sharing={self.sharing}, shorter_input={self.shorter_input}"

    def forward(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        key_map: nn.Linear,
        value_map: nn.Linear,
        *,
        num_heads: int,
        lengths: Int[Tensor, " batch"] | None = None,
        bias_order: str = "before_projection",
        projected_dim: int | Sequence[int] | None = None,
    ) -> list[Slots]:
        """Projected keys E·(K·W_K) and values F·(V·W_V), heads split, for each group of heads with one k.

        Args:
            key: Input of the keys, padded on the right only, zero there.
            value: Input of the values, likewise.
            key_map: W_K and b_K.
            value_map: W_V and b_V.
            num_heads: h.
            lengths: Real tokens in each sequence; None: all are real.
            bias_order: `before_projection` or `after_projection`.
            projected_dim: Fewer slots than the projection was made for, for all heads or for each.

        Raises:
            InputError: if the sequence is longer than seq_len, or as `fewer_slots`.
        """
        # An exported program serves many lengths, so nothing in it may depend on the one that it was traced with.
        if not torch.compiler.is_exporting() and key.shape[1] > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {key.shape[1]}")
        dims = self.fewer_slots(projected_dim, num_heads)
        by_size = {k: [head for head, other in enumerate(dims) if other == k] for k in sorted(set(dims), reverse=True)}
        groups = [(k, heads if len(by_size) > 1 else None) for k, heads in by_size.items()]
        key_heads, value_heads = (_HeadMap(linear, num_heads, bias_order) for linear in (key_map, value_map))
        return self._project(key, value, key_heads, value_heads, groups, lengths)

    def fewer_slots(self, projected_dim: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
        """The number of slots of each head, checked against those that the projection was made for.

        Raises:
            InputError: for more slots than there are, for fewer where the projection cannot have them, or if it was
                made for another number of heads.
        """
        if num_heads != self.num_heads:
            raise InputError(f"num_heads: expected {self.num_heads}, as the projection has, got {num_heads}")
        if projected_dim is None:
            return self.head_dims
        dims = slots_by_head(projected_dim, num_heads, limit=self.projected_dim, limited_by="those of the projection")
        if any(wanted > made for wanted, made in zip(dims, self.head_dims, strict=True)):
            raise InputError(f"projected_dim: expected at most {list(self.head_dims)} by head, got {list(dims)}")
        if not self.nested:
            self._require_uniform({*dims, *self.head_dims})
        return dims

    def resize(self, seq_len: int, mode: str) -> None:
        """Change the longest sequence in place, and with `extend` the number of slots where windows keep their size.

        Args:
            seq_len: The new n.
            mode: `extend`: texts of up to the old length give what they gave, and columns repeat periodically beyond.
                `interpolate`: E and F are stretched.

        Raises:
            InputError: for a length that the mode or the number of slots does not allow.
        """
        self.check_resize(seq_len, mode)
        self._resize(seq_len, mode)
        self.seq_len = seq_len

    def check_resize(self, seq_len: int, mode: str) -> None:
        """Raise what `resize` would."""
        check_resize(self.seq_len, seq_len, mode, least=self.projected_dim)
        if mode == "extend" and self.stretches and self.shorter_input == "stretch":
            raise InputError("mode: expected interpolate with shorter_input stretch, where every length is stretched")

    def _project(
        self, key: Tensor, value: Tensor, key_map: _HeadMap, value_map: _HeadMap, groups: Groups, lengths: Tensor | None
    ) -> list[Slots]:
        raise NotImplementedError

    def _resize(self, seq_len: int, mode: str) -> None:
        raise NotImplementedError

    def _require_uniform(self, dims: Sequence[int] | set[int]) -> None:
        if len(set(dims)) > 1:
            raise InputError(
                "projected_dim: expected the same for all heads and at all times, because the kernel of a convolution "
                f"is tied to it, got {sorted(set(dims))}"
            )


class _MatrixProjection(SequenceProjection):
    """E and F are matrices, learned or fixed."""

    @property
    def by_head(self) -> bool:
        """Whether each head has matrices of its own."""
        return False

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """E and F; one and the same tensor where E = F."""
        raise NotImplementedError

    def _scale(self, slots: int) -> float:
        """What the first rows are multiplied by where a head has fewer slots than there are rows."""
        return 1.0

    def _project(
        self, key: Tensor, value: Tensor, key_map: _HeadMap, value_map: _HeadMap, groups: Groups, lengths: Tensor | None
    ) -> list[Slots]:
        length = key.shape[1]
        padding_mask = None if lengths is None else padding_after(lengths, length)
        key_matrix, value_matrix = self._matrices()
        tied = value_matrix is key_matrix
        key_matrix = self._fit(key_matrix, length, lengths)
        value_matrix = key_matrix if tied else self._fit(value_matrix, length, lengths)
        most = groups[0][0]
        # Fewer rows for W is the cheap order. It needs one matrix for all heads, and it is cheap only if k < n.
        if self.by_head or (not torch.compiler.is_exporting() and length <= most):
            return [
                Slots(
                    key_map.project(self._rows(key_matrix, k, heads), key, heads, padding_mask),
                    value_map.project(self._rows(value_matrix, k, heads), value, heads, padding_mask),
                    None,
                    heads,
                )
                for k, heads in groups
            ]
        key_matrix, value_matrix = key_matrix[..., :most, :], value_matrix[..., :most, :]
        compressed_key = key_matrix @ key
        compressed_value = compressed_key if tied and value is key else value_matrix @ value
        key_sums = _row_sums(key_matrix, padding_mask)
        value_sums = key_sums if tied else _row_sums(value_matrix, padding_mask)
        return [
            Slots(
                key_map.of_compressed(compressed_key[:, :k], heads, key_sums[..., :k], self._scale(k)),
                value_map.of_compressed(compressed_value[:, :k], heads, value_sums[..., :k], self._scale(k)),
                None,
                heads,
            )
            for k, heads in groups
        ]

    def _fit(self, matrix: Tensor, length: int, lengths: Tensor | None) -> Tensor:
        """The matrix for the present lengths: its columns, with the batch in front where sequences differ."""
        if self.shorter_input == "stretch" and self.stretches:
            if lengths is None:
                return stretch_matrix(matrix, torch.tensor([length], device=matrix.device), length)[0]
            return stretch_matrix(matrix, lengths.clamp(min=1), length)
        if torch.compiler.is_exporting():  # a slice would tell the full length from shorter ones
            return matrix.index_select(-1, torch.arange(length, device=matrix.device))
        return matrix[..., :length]

    def _rows(self, matrix: Tensor, slots: int, heads: list[int] | None) -> Tensor:
        """The matrices of some heads, `[..., heads or 1, slots, length]`."""
        if not self.by_head:
            rows = matrix[..., None, :slots, :]
            return rows if self._scale(slots) == 1 else rows * self._scale(slots)
        if self.uniform:
            return matrix[..., :slots, :] if heads is None else matrix[..., heads, :slots, :]
        heads = list(range(self.num_heads)) if heads is None else heads
        first = [sum(self.head_dims[:head]) for head in heads]
        rows = matrix[..., [row + slot for row in first for slot in range(slots)], :]
        return rows.unflatten(-2, (len(heads), slots))


class LinearProjection(_MatrixProjection):
    """Learned E and F: each slot is a weighted sum of all positions (equation 7).

    The parameters are `key_projection` (E) and, where it is not E itself, `value_projection` (F), each
    `[projected_dim, seq_len]`. For sharing `none` the heads stand in front or, if they differ in k, their matrices one
    below the other, `[sum of k, seq_len]`. For any other sharing a head with a smaller k uses the first rows.

    They start as scaled mean pooling (`functional.pooling_matrix`), its rows in `functional.spread_order`, so that the
    first rows see the sequence evenly.
    """

    value_projection: nn.Parameter | None

    def __init__(self, seq_len: int, projected_dim: int | Sequence[int], **arguments: Any) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        matrix = self._initial_matrix()
        self.key_projection = nn.Parameter(matrix)
        self.register_parameter("value_projection", None if self.tied else nn.Parameter(matrix.clone()))

    @property
    def by_head(self) -> bool:
        return self.sharing == "none"

    def initial_values(self) -> dict[str, Tensor]:
        matrix = self._initial_matrix()
        return {name: matrix for name, _ in self.named_parameters()}

    def _initial_matrix(self) -> Tensor:
        dims = self.head_dims if self.by_head else (self.projected_dim,)
        matrices = [pooling_matrix(k, self.seq_len)[spread_order(k)] for k in dims]
        if not self.by_head:
            return matrices[0]
        return torch.stack(matrices) if self.uniform else torch.cat(matrices)

    def _matrices(self) -> tuple[Tensor, Tensor]:
        return self.key_projection, self.key_projection if self.value_projection is None else self.value_projection

    @torch.no_grad()
    def _resize(self, seq_len: int, mode: str) -> None:
        for name, matrix in list(self.named_parameters()):
            if mode == "extend":
                resized = matrix[..., torch.arange(seq_len, device=matrix.device) % self.seq_len]
            else:
                resized = _stretch(matrix, seq_len)
            setattr(self, name, nn.Parameter(resized, requires_grad=matrix.requires_grad))


class RandomProjection(_MatrixProjection):
    """E = F = R with independent entries N(0, 1/k), fixed: the matrix of Theorems 1 and 2.

    R is the buffer `matrix`, `[projected_dim, seq_len]`, saved with the model. All heads share it whatever the sharing
    is; `layerwise` shares it among layers too. Fewer slots are the first rows times √(k/k'), again N(0, 1/k'). Its
    columns are alike, so there is nothing to stretch, and a longer R gets new columns.
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

    def _project(
        self, key: Tensor, value: Tensor, key_map: _HeadMap, value_map: _HeadMap, groups: Groups, lengths: Tensor | None
    ) -> list[Slots]:
        slots = []
        for k, heads in groups:
            windows, empty = self._windows(k, key, lengths)
            pooled_key = self._mean(windows, key)
            pooled_value = pooled_key if value is key else self._mean(windows, value)
            mapped = (key_map.of_compressed(pooled_key, heads), value_map.of_compressed(pooled_value, heads))
            slots.append(Slots(*mapped, empty, heads))
        return slots

    @staticmethod
    def _mean(windows: Windows, hidden: Tensor) -> Tensor:
        return windows.of(hidden).sum(dim=2) / windows.real.sum(dim=2).clamp(min=1)[..., None].to(hidden.dtype)


class _MappedWindowProjection(_WindowProjection):
    """What is done in the windows does not commute with W_K and W_V, and comes after them."""

    def _reduce(self, windows: Windows, mapped: Tensor, name: str, heads: list[int] | None) -> Tensor:
        """Slots, `[batch, heads, slots, head_dim]`, of X·W, `[batch, seq_len, heads, head_dim]`."""
        raise NotImplementedError

    def _project(
        self, key: Tensor, value: Tensor, key_map: _HeadMap, value_map: _HeadMap, groups: Groups, lengths: Tensor | None
    ) -> list[Slots]:
        padding_mask = None if lengths is None else padding_after(lengths, key.shape[1])
        slots = []
        for k, heads in groups:
            windows, empty = self._windows(k, key, lengths)
            keys, values = (
                head_map.add_bias(self._reduce(windows, head_map(inputs, heads, padding_mask), name, heads), heads)
                for inputs, head_map, name in (
                    (key, key_map, "key_projection"),
                    (value, value_map, "value_projection"),
                )
            )
            slots.append(Slots(keys, values, empty, heads))
        return slots


class MaxPoolProjection(_MappedWindowProjection):
    """Slot i is, in each dimension of K·W_K or V·W_V, the largest of the real tokens in window i (section 4)."""

    def _reduce(self, windows: Windows, mapped: Tensor, name: str, heads: list[int] | None) -> Tensor:
        largest = windows.of(mapped.flatten(2), fill=-math.inf).amax(dim=2)
        largest = largest.masked_fill(windows.empty[..., None], 0.0)
        return largest.unflatten(2, mapped.shape[2:]).transpose(1, 2)


class ConvProjection(_MappedWindowProjection):
    """A learned convolution with stride n/k over K·W_K and V·W_V: slot i weighs the tokens of window i (section 4).

    The kernel is ⌈n/k⌉ wide; a shorter window drops its last taps. It has no bias. The parameters are
    `key_projection` and, unless E = F, `value_projection`, each `[head_dim, width]`, for sharing `none` with the heads
    in front. They start as the scaled mean of the window. The kernel is tied to k, so k is one for all heads.
    """

    nested = False
    value_projection: nn.Parameter | None

    def __init__(self, seq_len: int, projected_dim: int | Sequence[int], *, head_dim: int, **arguments: Any) -> None:
        super().__init__(seq_len, projected_dim, **arguments)
        self.head_dim = head_dim
        kernel = self._initial_kernel()
        self.key_projection = nn.Parameter(kernel)
        self.register_parameter("value_projection", None if self.tied else nn.Parameter(kernel.clone()))

    def initial_values(self) -> dict[str, Tensor]:
        kernel = self._initial_kernel()
        return {name: kernel for name, _ in self.named_parameters()}

    @property
    def _width(self) -> int:
        return -(-self.seq_len // self.projected_dim)

    def _initial_kernel(self) -> Tensor:
        kernel = torch.full((self.head_dim, self._width), 1 / math.sqrt(self._width))
        return kernel.repeat(self.num_heads, 1, 1) if self.sharing == "none" else kernel

    def _kernel(self, name: str) -> Tensor:
        kernel = getattr(self, name)
        kernel = self.key_projection if kernel is None else kernel
        return kernel if self.sharing == "none" else kernel[None]

    def _reduce(self, windows: Windows, mapped: Tensor, name: str, heads: list[int] | None) -> Tensor:
        inside = windows.of(mapped.flatten(2)).unflatten(3, mapped.shape[2:])
        taps = self._kernel(name).movedim(-1, 0)[: inside.shape[2]]  # [width, heads or 1, head_dim]
        return (inside * taps.to(inside.dtype)).sum(dim=2).transpose(1, 2)

    @torch.no_grad()
    def _resize(self, seq_len: int, mode: str) -> None:
        super()._resize(seq_len, mode)
        if mode == "interpolate":
            for name, kernel in list(self.named_parameters()):
                stretched = _stretch(kernel, -(-seq_len // self.projected_dim))
                setattr(self, name, nn.Parameter(stretched, requires_grad=kernel.requires_grad))


class DenseConvProjection(ConvProjection):
    """`ConvProjection` with kernels that also mix the dimensions of a head, `[head_dim out, head_dim in, width]`."""

    def _initial_kernel(self) -> Tensor:
        kernel = torch.eye(self.head_dim)[..., None] / math.sqrt(self._width) * torch.ones(self._width)
        return kernel.repeat(self.num_heads, 1, 1, 1) if self.sharing == "none" else kernel

    def _reduce(self, windows: Windows, mapped: Tensor, name: str, heads: list[int] | None) -> Tensor:
        inside = windows.of(mapped.flatten(2)).unflatten(3, mapped.shape[2:])
        kernel = self._kernel(name).expand(mapped.shape[2], -1, -1, -1).to(inside.dtype)
        return torch.einsum("bswhi,hoiw->bhso", inside, kernel)


class _HeadMap:
    """W_K or W_V with its bias, for all heads or some of them, in the order that `bias_order` wants."""

    def __init__(self, linear: nn.Linear, num_heads: int, bias_order: str) -> None:
        self.linear = linear
        self.num_heads = num_heads
        self.bias_first = bias_order == "before_projection"

    def _of(self, heads: list[int] | None) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.linear.weight, self.linear.bias
        if heads is None:
            return weight, bias
        weight = weight.unflatten(0, (self.num_heads, -1))[heads].flatten(0, 1)
        return weight, None if bias is None else bias.unflatten(0, (self.num_heads, -1))[heads].flatten()

    def __call__(self, inputs: Tensor, heads: list[int] | None, padding_mask: Tensor | None) -> Tensor:
        """X·W + m·b, or X·W where the bias comes later; m is 1 on real tokens. `[batch, seq_len, heads, head_dim]`."""
        weight, bias = self._of(heads)
        if bias is None or not self.bias_first:
            mapped = nn.functional.linear(inputs, weight)
        else:
            mapped = zero_padding(nn.functional.linear(inputs, weight, bias), padding_mask)
        return mapped.unflatten(2, (self.num_heads if heads is None else len(heads), -1))

    def add_bias(self, slots: Tensor, heads: list[int] | None) -> Tensor:
        """Slots + 1·b where the bias comes after the projection. `[batch, heads, slots, head_dim]`."""
        bias = self._of(heads)[1]
        if bias is None or self.bias_first:
            return slots
        return slots + bias.to(slots.dtype).view(slots.shape[1], 1, -1)

    def project(self, matrices: Tensor, inputs: Tensor, heads: list[int] | None, padding_mask: Tensor | None) -> Tensor:
        """The order of the paper: E·(X·W + m·b), or E·(X·W) + 1·b."""
        return self.add_bias(matrices @ self(inputs, heads, padding_mask).transpose(1, 2), heads)

    def of_compressed(
        self, compressed: Tensor, heads: list[int] | None, row_sums: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        """The same number from E·X: (E·X)·W + (E·m)⊗b, or (E·X)·W + 1⊗b; W is applied to k rows instead of n.

        `row_sums` is E·m; None: 1. Both E·X and E·m are multiplied by `scale`.
        """
        weight, bias = self._of(heads)
        if scale != 1:
            compressed = compressed * scale
        if bias is None or row_sums is None or not self.bias_first:
            mapped = nn.functional.linear(compressed, weight, bias)
        else:
            mapped = nn.functional.linear(compressed, weight)
            mapped = mapped + ((row_sums * scale)[..., None] * bias).to(mapped.dtype)
        return split_heads(mapped, self.num_heads if heads is None else len(heads))


def check_resize(seq_len: int, new_seq_len: int, mode: str, *, least: int = 1) -> None:
    """Refuse an unknown mode, `extend` to fewer positions, and `interpolate` to fewer than `least`.

    Raises:
        InputError: that says so.
    """
    if mode not in RESIZE_MODES:
        raise InputError(f"mode: expected one of {', '.join(RESIZE_MODES)}, got {mode!r}")
    least = seq_len if mode == "extend" else least
    if not _is_integer(new_seq_len) or new_seq_len < least:
        raise InputError(f"seq_len: expected at least {least} for mode {mode}, got {new_seq_len!r}")


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


def slots_by_head(
    projected_dim: int | Sequence[int], num_heads: int, *, limit: int, limited_by: str
) -> tuple[int, ...]:
    """The number of slots of each head.

    Raises:
        InputError: for anything but an integer from 1 to limit, or one for each head.
    """
    dims: list[Any] = list(projected_dim) if isinstance(projected_dim, (list, tuple)) else [projected_dim] * num_heads
    if len(dims) != num_heads:
        raise InputError(f"projected_dim: expected one number for each of {num_heads} heads, got {len(dims)}")
    for dim in dims:
        if not _is_integer(dim) or not 1 <= dim <= limit:
            raise InputError(f"projected_dim: expected 1 to {limit} ({limited_by}), got {dim!r}")
    return tuple(dims)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _row_sums(matrix: Tensor, padding_mask: Tensor | None) -> Tensor:
    """E·m, with m 1 on real tokens and 0 on padding."""
    if padding_mask is None or matrix.dim() == 3:  # a matrix of its own for each sequence is zero on padding
        return matrix.sum(dim=-1)
    return (~padding_mask).to(matrix.dtype) @ matrix.T


def _stretch(matrix: Tensor, width: int) -> Tensor:
    return stretch_matrix(matrix, torch.tensor([width], device=matrix.device), width)[0]


PROJECTIONS: dict[str, type[SequenceProjection]] = {
    "linear": LinearProjection,
    "mean_pool": MeanPoolProjection,
    "max_pool": MaxPoolProjection,
    "conv": ConvProjection,
    "dense_conv": DenseConvProjection,
    "random": RandomProjection,
}


def build_projection(
    name: str,
    *,
    seq_len: int,
    projected_dim: int | Sequence[int],
    num_heads: int,
    head_dim: int,
    sharing: str,
    shorter_input: str,
) -> SequenceProjection:
    """The projection of that name; head_dim is the width of a head.

    Raises:
        InputError: for an unknown name, and what the projection itself refuses.
    """
    if name not in PROJECTIONS:
        raise InputError(f"projection: expected one of {', '.join(PROJECTIONS)}, got {name!r}")
    kind = PROJECTIONS[name]
    arguments: dict[str, Any] = {"num_heads": num_heads, "sharing": sharing, "shorter_input": shorter_input}
    if issubclass(kind, ConvProjection):
        arguments["head_dim"] = head_dim
    return kind(seq_len, projected_dim, **arguments)
