"""What all projections have in common: sizes, sharing, heads in groups of equal k, and the linear maps of heads.

Axes as in `slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.operator.padding import Padding
from linformer_kit.operator.projections.head_maps import HeadMap
from linformer_kit.operator.projections.sizes import HeadGroups, check_resize, is_integer, slots_by_head
from linformer_kit.operator.slots import Slots
from linformer_kit.settings import BiasOrder, Sharing, ShorterInput

SHARINGS = get_args(Sharing)
BIAS_ORDERS = get_args(BiasOrder)
SHORTER_INPUTS = get_args(ShorterInput)


class Inputs(NamedTuple):
    """What a projection is called with: tokens, the linear maps W_K and W_V, and which tokens are real."""

    key: Float[Tensor, "batch seq_len embed"]  # zero at padding
    value: Float[Tensor, "batch seq_len embed"]  # likewise; the tensor of `key` itself where they are the same
    key_map: HeadMap
    value_map: HeadMap
    padding: Padding | None = None  # None: all tokens are real

    @property
    def mask(self) -> Bool[Tensor, "batch seq_len"] | None:
        """True where padded; None: nowhere."""
        return None if self.padding is None else self.padding.mask

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """Real tokens of each sequence; None: all."""
        return None if self.padding is None else self.padding.lengths

    def in_order(self) -> Inputs:
        """Padded on the right only; before that, maps that need every token have run on tokens where they stand."""
        key, key_map = self.key_map.in_order(self.key, self.mask)
        value, value_map = self.value_map.in_order(self.value, self.mask)
        if self.padding is None:
            return Inputs(key, value, key_map, value_map)
        ordered = self.padding.real_first(key)
        value = ordered if value is key else self.padding.real_first(value)
        return Inputs(ordered, value, key_map, value_map, self.padding.reordered())


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
            `stretch`: E is resampled to m columns (`resampling.stretch_matrix`), min(k, m) windows tile the m tokens.

    Raises:
        InputError: for a projected_dim outside 1 … seq_len, an unknown sharing or shorter_input.
    """

    nested = True  # whether heads may have fewer slots than others and than there are
    stretches = True  # whether shorter_input makes a difference
    windowed = False  # whether slots are windows, which become more when a model is extended
    supports_sequence_parallel = False  # whether slots are sums over positions, which processes can split
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
        self._set_head_dims(slots_by_head(projected_dim, num_heads, limit=seq_len, limited_by="the longest sequence"))
        self.sharing = sharing
        self.shorter_input = shorter_input
        if not self.nested:
            self._require_uniform(self.head_dims)

    def _set_head_dims(self, dims: Sequence[int]) -> None:
        self._groups = HeadGroups.of(dims)

    @property
    def head_dims(self) -> tuple[int, ...]:
        """k of each head."""
        return self._groups.dims

    @property
    def projected_dim(self) -> int:
        """The largest k."""
        return self._groups.most

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
        return len(self._groups.groups) == 1

    def initial_values(self) -> dict[str, Tensor]:
        """The start of every parameter and buffer, by name."""
        return {}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters and buffers again, with new random numbers."""
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

    def forward(self, inputs: Inputs, groups: HeadGroups | None = None) -> list[Slots]:
        """Projected keys E·(K·W_K) and values F·(V·W_V), heads split, for each group of heads with one k.

        Args:
            inputs: Keys and values, W_K and W_V, and the padding. The maps are called on the k rows of E·K and F·V
                where they commute with the projection, else on all tokens.
            groups: Heads by their numbers of slots, at most those that the projection was made with; default: those.

        Raises:
            InputError: if the sequence is longer than seq_len, or for more heads or slots than there are.
        """
        raise NotImplementedError

    def _prepared(self, inputs: Inputs, groups: HeadGroups | None) -> tuple[Inputs, HeadGroups]:
        """What `forward` is called with, checked, and padded on the right only."""
        length = inputs.key.shape[1]
        # An exported program serves many lengths, so nothing in it may depend on the one that it was traced with.
        if not torch.compiler.is_exporting() and length > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {length}")
        if groups is None and inputs.key_map.num_heads == self.num_heads:
            groups = self._groups
        else:
            self.fewer_slots(None if groups is None else groups.dims, inputs.key_map.num_heads)
        assert groups is not None
        return inputs.in_order(), groups

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
