"""What all projections have in common: sizes, sharing, heads in groups of equal k, and the linear maps of heads.

Axes as in `functional`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.operator.functional import padding_after
from linformer_kit.operator.kernels import arranged
from linformer_kit.operator.projections.maps import HeadMap
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
    projected: bool = True  # False with full attention, where each token has a slot of its own

    def arranged(self) -> Slots:
        """The same, laid out in memory for queries that come block by block."""
        key, value = arranged(self.key, self.value) if self.projected else (self.key, self.value)
        return self._replace(key=key, value=value)

    def of_samples(self, samples: slice) -> Slots:
        """The slots of some of the sequences."""
        empty = self.empty if self.empty is None or self.empty.shape[0] == 1 else self.empty[samples]
        return self._replace(key=self.key[samples], value=self.value[samples], empty=empty)


class Inputs(NamedTuple):
    """What a projection is called with; key and value are padded on the right only, and zero there."""

    key: Float[Tensor, "batch seq_len embed"]
    value: Float[Tensor, "batch seq_len embed"]
    key_map: HeadMap
    value_map: HeadMap
    lengths: Int[Tensor, " batch"] | None  # real tokens in each sequence; None: all are real

    @property
    def padding_mask(self) -> Bool[Tensor, "batch seq_len"] | None:
        return None if self.lengths is None else padding_after(self.lengths, self.key.shape[1])


class Piece(NamedTuple):
    """What one process holds of a sequence that is split over several (`parallel`)."""

    positions: slice  # of the n positions
    add: Callable[[list[Tensor]], list[Tensor]]  # each tensor summed over the processes, all in one message


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
    adds_up = False  # whether it can add up what processes with a piece of the positions each contribute to the slots
    piece: Piece | None = None  # None: the whole sequence is here

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
        if not is_integer(seq_len) or seq_len < 1:
            raise InputError(f"seq_len: expected a positive integer, got {seq_len!r}")
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
        key_map: HeadMap,
        value_map: HeadMap,
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        projected_dim: int | Sequence[int] | None = None,
    ) -> list[Slots]:
        """Projected keys E·(K·W_K) and values F·(V·W_V), heads split, for each group of heads with one k.

        Args:
            key: Input of the keys, padded on the right only, zero there.
            value: Input of the values, likewise.
            key_map: W_K and b_K, called on the k rows of E·K where they commute with E, else on K.
            value_map: W_V and b_V, likewise.
            lengths: Real tokens in each sequence; None: all are real.
            projected_dim: Fewer slots than the projection was made for, for all heads or for each.

        Raises:
            InputError: if the sequence is longer than seq_len, or as `fewer_slots`.
        """
        # An exported program serves many lengths, so nothing in it may depend on the one that it was traced with.
        if not torch.compiler.is_exporting() and key.shape[1] > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {key.shape[1]}")
        dims = self.fewer_slots(projected_dim, key_map.num_heads)
        by_size = {k: [head for head, other in enumerate(dims) if other == k] for k in sorted(set(dims), reverse=True)}
        groups = [(k, heads if len(by_size) > 1 else None) for k, heads in by_size.items()]
        inputs = Inputs(key, value, key_map, value_map, lengths)
        if key_map.runs_first or value_map.runs_first:
            key, key_map = key_map.in_order(key, inputs.padding_mask)
            value, value_map = value_map.in_order(value, inputs.padding_mask)
            inputs = Inputs(key, value, key_map, value_map, lengths)
        return self._project(inputs, groups)

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
        if self.piece is not None:
            raise InputError("projection: expected a whole one to resize, got the piece of one of several processes")
        check_resize(self.seq_len, seq_len, mode, least=self.projected_dim)
        if mode == "extend" and self.stretches and self.shorter_input == "stretch":
            raise InputError("mode: expected interpolate with shorter_input stretch, where every length is stretched")

    def _project(self, inputs: Inputs, groups: Groups) -> list[Slots]:
        """The projection itself, for each group of heads."""
        raise NotImplementedError

    def _resize(self, seq_len: int, mode: str) -> None:
        raise NotImplementedError

    def _added(self, parts: list[Tensor]) -> list[Tensor]:
        """Sums over the positions that are here to sums over the whole sequence."""
        return parts if self.piece is None else self.piece.add(parts)

    def _require_uniform(self, dims: Sequence[int] | set[int]) -> None:
        if len(set(dims)) > 1:
            raise InputError(
                "projected_dim: expected the same for all heads and at all times, because the kernel of a convolution "
                f"is tied to it, got {sorted(set(dims))}"
            )


class LearnedProjection(SequenceProjection):
    """E and, unless E = F, F are parameters of one form and one start."""

    key_projection: nn.Parameter
    value_projection: nn.Parameter | None

    def _start(self) -> Tensor:
        """The start of E or of F; what is random is drawn at each call."""
        raise NotImplementedError

    def _make_parameters(self) -> None:
        self.key_projection = nn.Parameter(self._start())
        self.register_parameter("value_projection", None if self.tied else nn.Parameter(self._start()))

    @torch.no_grad()
    def _replace_parameters(self, change: Callable[[Tensor], Tensor]) -> None:
        for name, old in list(self.named_parameters()):
            setattr(self, name, nn.Parameter(change(old), requires_grad=old.requires_grad))

    def initial_values(self) -> dict[str, Tensor]:
        return {name: self._start() for name, _ in self.named_parameters()}


def check_resize(seq_len: int, new_seq_len: int, mode: str, *, least: int = 1) -> None:
    """Refuse an unknown mode, `extend` to fewer positions, and `interpolate` to fewer than `least`.

    Raises:
        InputError: that says so.
    """
    if mode not in RESIZE_MODES:
        raise InputError(f"mode: expected one of {', '.join(RESIZE_MODES)}, got {mode!r}")
    least = seq_len if mode == "extend" else least
    if not is_integer(new_seq_len) or new_seq_len < least:
        raise InputError(f"seq_len: expected at least {least} for mode {mode}, got {new_seq_len!r}")


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
        if not is_integer(dim) or not 1 <= dim <= limit:
            raise InputError(f"projected_dim: expected 1 to {limit} ({limited_by}), got {dim!r}")
    return tuple(dims)


def each_dim(projected_dim: Any, change: Callable[[int], int]) -> Any:
    """A k, or lists of k for layers and heads, with each number changed."""
    if isinstance(projected_dim, list):
        return [each_dim(dim, change) for dim in projected_dim]
    return change(projected_dim)


def largest_dim(projected_dim: Any) -> int:
    """The largest k of all layers and heads."""
    return max(map(largest_dim, projected_dim)) if isinstance(projected_dim, list) else projected_dim


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)
