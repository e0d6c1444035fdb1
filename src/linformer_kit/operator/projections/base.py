"""Base classes of projections: inputs, sizes, sharing, and heads in groups of equal k.

Axes as in `slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from linformer_cli.errors import InputError
from linformer_cli.settings import BiasOrder, Sharing, ShorterInput
from linformer_kit.operator.neighbours import Exchange
from linformer_kit.operator.padding import Padding
from linformer_kit.operator.projections.head_maps import HeadMap
from linformer_kit.operator.projections.sizes import HeadGroups, check_resize, is_integer, slots_by_head
from linformer_kit.operator.slots import Slots

SHARINGS = get_args(Sharing)
BIAS_ORDERS = get_args(BiasOrder)
SHORTER_INPUTS = get_args(ShorterInput)


class Inputs(NamedTuple):
    """Inputs of a projection: tokens, the linear maps W_K and W_V, and the padding."""

    key: Float[Tensor, "batch seq_len embed"]  # zero at padding
    value: Float[Tensor, "batch seq_len embed"]  # likewise; the same tensor object as `key` if they are equal
    key_map: HeadMap
    value_map: HeadMap
    padding: Padding | None = None  # None: all tokens are real
    unmapped: Float[Tensor, "batch seq_len embed"] | None = None  # input of W_K, if `key` is its output; else None

    @property
    def mask(self) -> Bool[Tensor, "batch seq_len"] | None:
        """True where padded; None: no padding."""
        return None if self.padding is None else self.padding.mask

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """Number of real tokens of each sequence; None: all."""
        return None if self.padding is None else self.padding.lengths

    def in_order(self) -> Inputs:
        """Move real tokens first; maps that must run on every token run before, on tokens in their original order."""
        key, key_map = self.key_map.in_order(self.key, self.mask)
        value, value_map = self.value_map.in_order(self.value, self.mask)
        unmapped = self.unmapped if key is self.key else self.key
        if self.padding is None:
            return self._replace(key=key, value=value, key_map=key_map, value_map=value_map, unmapped=unmapped)
        ordered = self.padding.real_first(key)
        value = ordered if value is key else self.padding.real_first(value)
        unmapped = None if unmapped is None else self.padding.real_first(unmapped)
        return Inputs(ordered, value, key_map, value_map, self.padding.reordered(), unmapped)

    def first(self, tokens: int) -> Inputs:
        """The first tokens, of inputs in order."""
        return self._cut(slice(tokens))

    def after(self, tokens: int) -> Inputs:
        """The tokens after the first ones, of inputs in order."""
        if not tokens:
            return self
        rest = self._cut(slice(tokens, None))
        key_map = self.key_map.after(tokens, self.key, rest.key)
        return rest._replace(key_map=key_map, value_map=self.value_map.after(tokens, self.value, rest.value))

    def padded(self, positions: int) -> Inputs:
        """With more positions of padding at the end."""
        key, value, unmapped = (
            None if hidden is None else F.pad(hidden, (0, 0, 0, positions))
            for hidden in (self.key, self.value, self.unmapped)
        )
        assert key is not None and value is not None
        mask = self.key.new_zeros(self.key.shape[:2], dtype=torch.bool) if self.mask is None else self.mask
        padding = Padding(F.pad(mask, (0, positions), value=True), (~mask).sum(dim=1), None)
        value = key if self.value is self.key else value
        return self._replace(key=key, value=value, padding=padding, unmapped=unmapped)

    def _cut(self, tokens: slice) -> Inputs:
        key = self.key[:, tokens]
        return self._replace(
            key=key,
            value=key if self.value is self.key else self.value[:, tokens],
            padding=None if self.padding is None else self.padding.cut(tokens),
            unmapped=None if self.unmapped is None else self.unmapped[:, tokens],
        )


class Piece(NamedTuple):
    """The piece of one process, of a sequence split over several (`parallel`)."""

    positions: slice  # this process's part of the n positions
    add: Callable[[list[Tensor]], list[Tensor]]  # sums each tensor over the processes, all in one message
    most: Callable[[Tensor], Tensor]  # elementwise maximum over the processes, without gradients
    exchange: Exchange  # tokens of the pieces before and after this one, if pieces are consecutive positions


class SequenceProjection(nn.Module):
    """Base class of projections: sizes, sharing, and heads in groups of equal k.

    Args:
        seq_len: n, the longest sequence; may be None if the projection has none (`bounded`).
        projected_dim: k, the number of slots, from 1 to seq_len; or one for each head.
        num_heads: h.
        sharing: `none`: E and F for each head; `headwise`: E and F for all heads; `key_value` and `layerwise`: one
            matrix for both, E = F. With `layerwise` all layers use the same module; its owner passes it to them. For
            projections without parameters, sharing has no effect.
        shorter_input: How m < n real tokens are projected. `prefix`: the first m columns of E, the first windows.
            `stretch`: E is resampled to m columns (`resampling.stretch_matrix`), min(k, m) windows tile the m tokens.

    Raises:
        InputError: for a projected_dim outside 1 … seq_len, an unknown sharing or shorter_input.
    """

    bounded = True  # whether seq_len limits the length of sequences
    nested = True  # whether heads may use different numbers of slots, and fewer than the projection has
    stretches = True  # whether shorter_input has an effect
    windowed = False  # whether slots are windows, whose number grows when a model is extended
    supports_sequence_parallel = False  # whether slots are sums over positions, which processes can split
    piece: Piece | None = None  # None: this process has the whole sequence

    def __init__(
        self,
        seq_len: int | None,
        projected_dim: int | Sequence[int],
        *,
        num_heads: int,
        sharing: str = "headwise",
        shorter_input: str = "prefix",
    ) -> None:
        super().__init__()
        given = seq_len is not None or self.bounded
        if given and not (is_integer(seq_len) and cast(int, seq_len) > 0):
            raise InputError(f"seq_len: expected a positive integer, got {seq_len!r}")
        if sharing not in SHARINGS:
            raise InputError(f"sharing: expected one of {', '.join(SHARINGS)}, got {sharing!r}")
        if shorter_input not in SHORTER_INPUTS:
            raise InputError(f"shorter_input: expected one of {', '.join(SHORTER_INPUTS)}, got {shorter_input!r}")
        self.seq_len = cast(int, seq_len)  # None only if not `bounded`, where nothing computes with it
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
        """Whether all heads have the same k."""
        return len(self._groups.groups) == 1

    def initial_values(self) -> dict[str, Tensor]:
        """Initial values of all parameters and buffers, by name."""
        return {}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all parameters and buffers again, with new random numbers."""
        for name, value in self.initial_values().items():
            getattr(self, name).copy_(value)

    def matrix_count(self) -> int:
        """Number of learned n → k maps of this projection, as counted in section 4 of the paper."""
        if next(self.parameters(), None) is None:
            return 0
        return (self.num_heads if self.sharing == "none" else 1) * (1 if self.tied else 2)

    def extra_repr(self) -> str:
        slots = self.projected_dim if self.uniform else list(self.head_dims)
        return f"{self.seq_len} -> {slots}, sharing={self.sharing}, shorter_input={self.shorter_input}"

    def forward(self, inputs: Inputs, groups: HeadGroups | None = None) -> list[Slots]:
        """Projected keys E·(K·W_K) and values F·(V·W_V), heads split, for each group of heads with the same k.

        Args:
            inputs: Keys and values, W_K and W_V, and the padding. The maps are called on the k rows of E·K and F·V if
                they commute with the projection, else on all tokens.
            groups: Heads by number of slots, at most those of the projection; default: those of the projection.

        Raises:
            InputError: if the sequence is longer than seq_len, or for more heads or slots than there are.
        """
        raise NotImplementedError

    def _prepared(self, inputs: Inputs, groups: HeadGroups | None) -> tuple[Inputs, HeadGroups]:
        """Check the arguments of `forward`, and move real tokens first."""
        length = inputs.key.shape[1]
        # An exported program runs with many lengths, so it must not depend on the length of the traced input.
        if self.bounded and not torch.compiler.is_exporting() and length > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {length}")
        if groups is None and inputs.key_map.num_heads == self.num_heads:
            groups = self._groups
        else:
            self.fewer_slots(None if groups is None else groups.dims, inputs.key_map.num_heads)
        assert groups is not None
        return inputs.in_order(), groups

    def fewer_slots(self, projected_dim: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
        """The number of slots of each head, checked against those of the projection.

        Raises:
            InputError: for more slots than the projection has, for fewer if it does not support them, or for another
                number of heads.
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

    def keeps_tokens(self, length: int, groups: HeadGroups | None = None) -> bool:
        """Whether each token of texts of this length, or less, is a slot of its own."""
        return False

    def resize(self, seq_len: int, mode: str) -> None:
        """Change the maximum sequence length in-place, and for windows with `extend` also the number of slots.

        Args:
            seq_len: The new n.
            mode: `extend`: columns are repeated periodically; outputs of texts up to the old length are unchanged.
                `interpolate`: E and F are stretched.

        Raises:
            InputError: for a length that the mode or the number of slots does not allow.
        """
        self.check_resize(seq_len, mode)
        self._resize(seq_len, mode)
        self.seq_len = seq_len

    def check_resize(self, seq_len: int, mode: str) -> None:
        """Raise the errors of `resize`."""
        if self.piece is not None:
            raise InputError("projection: expected a whole one to resize, got one split over several processes")
        least = self.projected_dim
        check_resize(self.seq_len if self.bounded else least, seq_len, mode, least=least)
        if mode == "extend" and self.stretches and self.shorter_input == "stretch":
            raise InputError("mode: expected interpolate with shorter_input stretch, which stretches every length")

    def _resize(self, seq_len: int, mode: str) -> None:
        raise NotImplementedError

    def of_positions(self) -> dict[str, Tensor]:
        """Parameters and buffers by name that have a column for each position, on their last axis."""
        return {}

    def _added(self, parts: list[Tensor]) -> list[Tensor]:
        """Turn sums over this process's positions into sums over the whole sequence."""
        return parts if self.piece is None else self.piece.add(parts)

    def _require_uniform(self, dims: Sequence[int] | set[int]) -> None:
        if len(set(dims)) > 1:
            raise InputError(
                "projected_dim: expected one constant number for all heads, because the kernel of a convolution "
                f"depends on it, got {sorted(set(dims))}"
            )


class LearnedProjection(SequenceProjection):
    """E and, unless E = F, F are parameters with the same shape and initialisation."""

    key_projection: nn.Parameter
    value_projection: nn.Parameter | None

    def _start(self) -> Tensor:
        """Initial value of E or F; random values are drawn anew at each call."""
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
