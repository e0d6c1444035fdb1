"""The base class of projections, what one of them receives, and what it gives to attention.

Axes as in `slots`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linformer_cli.errors import InputError, check_choice, check_input
from linformer_cli.settings import Sharing, ShorterInput
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.projections.sizes import check_resize, is_integer, slots_by_head
from linformer_kit.operator.slots import ForwardPass, merge_heads

_WITHOUT_CHANGE = "projection: expected one with `change_length`, got {}"


class Tokens(NamedTuple):
    """What a projection receives: the tokens of keys and values, right-padded, with zeros at padding.

    Either W_K and W_V have mapped them, by heads; or not yet, as one head of width d_m: `attention` chooses.
    """

    key: Float[Tensor, "batch heads seq_len dim"]
    value: Float[Tensor, "batch heads seq_len dim"] | None  # None: those of the keys
    is_mapped: bool
    forward_pass: ForwardPass
    # The input of the keys; None: what is mapped is all there is, as in a linearised model.
    inputs: Float[Tensor, "batch seq_len embed"] | None = None

    @property
    def source(self) -> Float[Tensor, "batch seq_len embed"]:
        """The input of the keys, or what W_K made of it."""
        return merge_heads(self.key) if self.inputs is None else self.inputs

    @property
    def values(self) -> Float[Tensor, "batch heads seq_len dim"]:
        """The tokens of the values."""
        return self.key if self.value is None else self.value

    def until(self, last: int) -> Tokens:
        """The first tokens of each text, without their lengths."""
        value = None if self.value is None else self.value[:, :, :last]
        return self._replace(key=self.key[:, :, :last], value=value)

    def after(self, first: int) -> Tokens:
        """The tokens after the first ones of each text."""
        lengths = None if self.forward_pass.lengths is None else (self.forward_pass.lengths - first).clamp(min=0)
        return self._replace(
            key=self.key[:, :, first:],
            value=None if self.value is None else self.value[:, :, first:],
            forward_pass=self.forward_pass._replace(lengths=lengths),
            inputs=None if self.inputs is None else self.inputs[:, first:],
        )

    def map(self, function: Callable[[Tensor, bool], Tensor], *, tied: bool) -> tuple[Tensor, Tensor]:
        """function(tokens, are_values) of keys and of values; once if they are the same tokens and `tied`: E = F."""
        key = function(self.key, False)
        return key, key if self.value is None and tied else function(
            self.key if self.value is None else self.value, True
        )


class Compressed(NamedTuple):
    """E·X of the keys and F·X of the values, for all heads with the same number of slots."""

    key: Float[Tensor, "batch heads slots dim"]
    value: Float[Tensor, "batch heads slots dim"]
    # E·r and F·r, with r 1 on real tokens and 0 on padding: how often a slot counts a bias. None: once (means), or the
    # tokens were mapped, and have it.
    sums: tuple[Float[Tensor, "*batch slots"], Float[Tensor, "*batch slots"]] | None = None
    # Real tokens of the window that a slot stands for; None: slots do not stand for windows.
    sizes: Int[Tensor, "batch_or_1 slots"] | None = None


class SequenceProjection(nn.Module, ABC):
    """Base class of projections of n positions to k slots.

    There are two kinds: a `MatrixProjection` writes `matrices`, for slots that are weighted sums of all tokens, and a
    `WindowProjection` writes `reduce`, for slots that stand for windows of tokens (docs/operator.md has examples).

    Args:
        seq_len: n, the longest sequence; may be None if the projection has none (`bounded`).
        projected_dim: k, the number of slots, from 1 to seq_len; or one for each head.
        num_heads: h.
        sharing: `none`: E and F for each head; `headwise`: E and F for all heads; `key_value` and `layerwise`: one
            matrix for both, E = F. With `layerwise` all layers use the same module. For projections without
            parameters, sharing has no effect.
        shorter_input: How m < n real tokens are projected. `prefix`: the first m columns of E, the first windows.
            `stretch`, for windows only: min(k, m) windows tile the m tokens.
        head_dim: d, the width of a head; needed for parameters as wide as tokens, as `conv` and `dynamic` have.
        initializer: Initialisation of E and F (`matrices.STARTS`); only `linear` has them.

    Raises:
        InputError: for a projected_dim outside 1 … seq_len, an unknown sharing, and a shorter_input that does not
            fit.
    """

    windowed = False  # the kind: whether slots stand for windows, whose number grows when a model is extended
    learned = False  # whether E and F are parameters (`LearnedProjection`); others are the same for all heads, E = F
    commutes = False  # whether slots are weighted sums of tokens, with equal weights in all dimensions of a head
    bounded = True  # whether seq_len limits the length of sequences
    always_tied = False  # whether E = F with every sharing

    def __init__(
        self,
        seq_len: int | None,
        projected_dim: int | Sequence[int],
        *,
        num_heads: int,
        sharing: str = "headwise",
        shorter_input: str = "prefix",
        head_dim: int | None = None,
        initializer: str = "shifted_pooling",
    ) -> None:
        super().__init__()
        is_length = is_integer(seq_len) and cast(int, seq_len) > 0
        may_be_none = not (self.bounded or self.windowed)  # windows tile the longest sequence
        check_input(is_length or (seq_len is None and may_be_none), "seq_len", "a positive integer", seq_len)
        check_choice("sharing", sharing, get_args(Sharing))
        self.check_shorter_input(shorter_input)
        self.seq_len = cast(int, seq_len)  # None only if not `bounded`, where nothing computes with it
        self.num_heads = num_heads
        self.head_dims = slots_by_head(projected_dim, num_heads, limit=seq_len, limited_by="the longest sequence")
        self.sharing = sharing
        self.shared_by_heads = sharing != "none" or not self.learned  # whether all heads have the same E and F
        self.tied = self.always_tied or not self.learned or sharing in ("key_value", "layerwise")  # whether E = F
        self.shorter_input = shorter_input
        self.head_dim = head_dim
        self.initializer = initializer

    @classmethod
    def check_shorter_input(cls, shorter_input: str) -> None:
        """Raise an error for an unknown value, and for `stretch` if slots are not windows."""
        check_choice("shorter_input", shorter_input, get_args(ShorterInput))
        expected = "prefix, or a projection with windows (such as mean_pool)"
        check_input(shorter_input == "prefix" or cls.windowed, "shorter_input", expected, shorter_input)

    @abstractmethod
    def forward(self, tokens: Tokens, slots: int) -> Compressed:
        """The slots of keys and values.

        Args:
            tokens: X. Not mapped only if the projection is `shared_by_heads` and `commutes`.
            slots: k of these heads, at most `projected_dim`.

        Raises:
            InputError: if the sequence is longer than seq_len.
        """

    @property
    def projected_dim(self) -> int:
        """The largest k."""
        return max(self.head_dims)

    def exact_length(self, slots: int) -> float:
        """The longest sequence whose tokens are slots of their own, as in full attention."""
        return 0

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
        return self.learned * (self.num_heads if self.sharing == "none" else 1) * (1 if self.tied else 2)

    def extra_repr(self) -> str:
        slots = self.projected_dim if len({*self.head_dims}) == 1 else list(self.head_dims)
        return f"{self.seq_len} -> {slots}, sharing={self.sharing}, shorter_input={self.shorter_input}"

    def checked_slots(self, projected_dim: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
        """The number of slots of each head; None: those of the projection.

        Raises:
            InputError: for more slots than the projection has, and for another number of heads.
        """
        if num_heads != self.num_heads:
            raise InputError(f"num_heads: expected {self.num_heads}, as the projection has, got {num_heads}")
        if projected_dim is None:
            return self.head_dims
        dims = slots_by_head(projected_dim, num_heads, limit=self.projected_dim, limited_by="those of the projection")
        if any(wanted > largest for wanted, largest in zip(dims, self.head_dims, strict=True)):
            raise InputError(f"projected_dim: expected at most {list(self.head_dims)} by head, got {list(dims)}")
        return dims

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
        before = self.seq_len
        self.change_length(seq_len, mode)
        self.seq_len = seq_len
        if not self._changes_length and any(
            getattr(self, name).shape != value.shape for name, value in self.initial_values().items()
        ):
            self.seq_len = before
            raise InputError(_WITHOUT_CHANGE.format(type(self).__name__))

    def check_resize(self, seq_len: int, mode: str) -> None:
        """Raise the errors of `resize`."""
        if not self._changes_length and (self.bounded or self.windowed):
            raise InputError(_WITHOUT_CHANGE.format(type(self).__name__))
        check_resize(self.seq_len if self.bounded else self.projected_dim, seq_len, mode, least=self.projected_dim)
        if mode == "extend" and self.shorter_input == "stretch":
            raise InputError("mode: expected interpolate with shorter_input stretch, which stretches every length")

    @property
    def _changes_length(self) -> bool:
        """Whether the class says what another n changes."""
        return type(self).change_length is not SequenceProjection.change_length

    def change_length(self, seq_len: int, mode: str) -> None:
        """Replace parameters and buffers for another n, while `seq_len` is the old one; a subclass writes it.

        Arguments as of `resize`, which calls it. Not needed if nothing depends on n.
        """

    def _check_length(self, seq_len: int, kernels: Kernels) -> None:
        # An exported program runs with many lengths, so it must not depend on the length of the traced input.
        if self.bounded and not kernels.exporting and seq_len > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {seq_len}")


class FullAttention(SequenceProjection):
    """Equation 2 as a projection: each token is its own slot, E = F = identity."""

    bounded = False
    commutes = True

    def __init__(self, num_heads: int) -> None:
        super().__init__(None, 1, num_heads=num_heads)

    def forward(self, tokens: Tokens, slots: int) -> Compressed:
        return Compressed(tokens.key, tokens.values)

    def exact_length(self, slots: int) -> float:
        return math.inf


class SharedProjection:
    """A projection that belongs to another module, such as an encoder whose layers share it.

    A plain object: the layer that uses the projection does not contain it, so that it is saved, counted and trained
    once. It is looked up at every call, so that a replacement is used.

    Args:
        owner: The module whose attribute `name` is the projection.
        name: The attribute.
    """

    def __init__(self, owner: nn.Module, name: str = "projection") -> None:
        self.owner = owner
        self.name = name

    @property
    def module(self) -> SequenceProjection:
        """The projection."""
        return getattr(self.owner, self.name)

    def __deepcopy__(self, memo: dict[int, object]) -> SharedProjection:
        """A copy of a layer alone keeps the owner; one of the owner with its layers gets the copy of the owner."""
        return SharedProjection(cast(nn.Module, memo.get(id(self.owner), self.owner)), self.name)


def bind_replica(owner: nn.Module) -> None:
    """Let the layers of a replica, as `nn.DataParallel` makes of all modules, use the projection of the replica.

    Plain attributes of a replica are those of the original, and so is the owner that its layers know.
    """
    if getattr(owner, "_is_replica", False):
        for module in owner.modules():
            shared = vars(module).get("projection")
            if isinstance(shared, SharedProjection):
                vars(module)["projection"] = SharedProjection(owner, shared.name)


def inside(module: nn.Module) -> SequenceProjection:
    """The projection itself, or that inside a module which wraps it, as adapters do: what it declares.

    Raises:
        InputError: if there is none.
    """
    for part in (module,) if isinstance(module, SequenceProjection) else module.modules():
        if isinstance(part, SequenceProjection):
            return part
    raise InputError(f"projection: expected a projection module, got {type(module).__name__}")


class LearnedProjection(SequenceProjection):
    """E and, unless E = F, F are parameters with the same shape and initialisation."""

    learned = True
    key_projection: nn.Parameter
    value_projection: nn.Parameter | None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.key_projection = nn.Parameter(self._start())
        self.register_parameter("value_projection", None if self.tied else nn.Parameter(self._start()))

    def _start(self) -> Tensor:
        """Initial value of E or F; random values are drawn anew at each call."""
        raise NotImplementedError

    @torch.no_grad()
    def _replace_parameters(self, change: Callable[[Tensor], Tensor]) -> None:
        for name, old in list(self.named_parameters()):
            setattr(self, name, nn.Parameter(change(old).contiguous(), requires_grad=old.requires_grad))

    def initial_values(self) -> dict[str, Tensor]:
        return {name: self._start() for name, _ in self.named_parameters()}
