"""Multi-head attention over k projected slots: equation 7 of Wang et al. 2020.

    head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V        output = Concat(head_1 … head_h)·W_O

With biases there are two orders of the products, of which the second multiplies k rows by W instead of n:

    E·(X·W + r⊗b)  =  (E·X)·W + (E·r)⊗b        r is 1 on real tokens and 0 on padding

Every sequence is right-padded here, and `lengths` says how many of its tokens are real (None: all). `drop_in` has the
public layer, which takes any padding and layout; `reference.equation_7` is the same equation as plain code, one head
and one sequence at a time. Axes as in `slots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.conditions import has_hooks
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import real_tokens, zero_padding
from linformer_kit.operator.projections import (
    PROJECTIONS,
    Compressed,
    FullAttention,
    SequenceProjection,
    SharedProjection,
    Tokens,
    inside,
)
from linformer_kit.operator.slots import ForwardPass, Slots, attend_slots, merge_heads, split_heads
from linformer_kit.operator.window import Window


class ProjectedAttention(nn.Module):
    """Attention over the slots of a projection, of right-padded sequences.

    The arguments are those of `LinformerAttention`, which checks them, except:

    Args:
        projection: E and F, a module of its own or one that belongs to another module; `FullAttention` for equation 2.
        projected_dim: k, or one for each head; None: those of the projection. Set the attribute to run with fewer
            slots; each call checks it.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        projection: SequenceProjection | SharedProjection,
        projected_dim: int | Sequence[int] | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        bias_order: str = "before_projection",
        sliding_window: int = 0,
        global_tokens: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.bias_order = bias_order
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.projection = projection
        self.projected_dim = projected_dim
        self.sliding_window = sliding_window
        self.global_tokens = global_tokens
        self.causal = causal
        self.checked_projection()

    def forward(
        self,
        query: Float[Tensor, "batch query_len embed"],
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"] | None = None,
        forward_pass: ForwardPass | None = None,
        need_weights: bool = False,
        slots: Slots | None = None,
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """Compute attention.

        Args:
            query: Input of the queries; with a sliding window those of the positions of the keys.
            key: Input of the keys, with zeros at padding (`padding.zero_padding`).
            value: Input of the values; None: that of the keys, so that E·X is computed once.
            forward_pass: The forward pass; None: of this layer alone, without padding.
            need_weights: Whether to return the context mapping P̄.
            slots: The slots; None: those of the keys.

        Returns:
            The output, and P̄ or None; see `LinformerAttention.forward`.

        Raises:
            InputError: for a sequence longer than the projection allows, and a projection with other heads or fewer
                slots.
        """
        forward_pass = ForwardPass.of(key, forward_pass)
        slots = self.project(key, value, forward_pass) if slots is None else slots
        output, weights = self.attend(query, slots, forward_pass.kernels, need_weights)
        if weights is not None and self.sliding_window and slots.neighbours is None and not self.is_full:
            weights = F.pad(weights, (0, self.sliding_window))  # each token is a slot
        return output, weights

    def project(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"] | None,
        forward_pass: ForwardPass,
    ) -> Slots:
        """The slots E·K·W_K and F·V·W_V, which all queries share; arguments as of `forward`."""
        module, declared, dims = self.checked_projection()  # again: k may be set, and E and F may be replaced
        layout = Layout(dims, self.sliding_window, self.global_tokens, self.causal)
        values = None if value is None else value.unsqueeze(1)
        tokens = Tokens(key.unsqueeze(1), values, False, forward_pass, key)
        if self._compresses_first(declared, key.shape[1] - self.global_tokens, dims, forward_pass.kernels):
            return make_slots(module, tokens, layout, self)  # (E·X)·W + (E·r)⊗b
        return make_slots(module, self.map_tokens(tokens), layout)  # E·(X·W + r⊗b)

    def map_tokens(self, tokens: Tokens) -> Tokens:
        """X·W + 1·b of keys and values, by heads."""
        kernels, heads, key = tokens.forward_pass.kernels, self.num_heads, tokens.key.squeeze(1)
        keys = split_heads(kernels.apply_linear(self.k_proj, key), heads)
        values = split_heads(kernels.apply_linear(self.v_proj, tokens.values.squeeze(1)), heads)
        return Tokens(keys, values, True, tokens.forward_pass, inputs=key)

    def map_slots(self, compressed: Compressed, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """(E·X)·W + (E·r)⊗b of keys and values, by heads."""
        sums = compressed.sums if self.bias_order == "before_projection" else None
        key_sums, value_sums = sums or (None, None)
        keys = _map_rows(self.k_proj, compressed.key.squeeze(1), key_sums, kernels)
        values = _map_rows(self.v_proj, compressed.value.squeeze(1), value_sums, kernels)
        return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

    def attend(
        self,
        query: Float[Tensor, "batch query_len embed"],
        slots: Slots,
        kernels: Kernels,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """softmax(Q·W_Q·slotsᵀ/√d)·slots for each query, the heads concatenated, and W_O."""
        dropout = self.dropout if self.training else 0.0
        queries = split_heads(kernels.apply_linear(self.q_proj, query), self.num_heads)
        heads, weights = attend_slots(queries, slots, kernels, dropout=dropout, need_weights=need_weights)
        return kernels.apply_linear(self.out_proj, merge_heads(heads)), weights

    def checked_projection(self) -> tuple[nn.Module, SequenceProjection, tuple[int, ...]]:
        """E and F as they are now, what they declare, and k of each head; an error if they do not suit this layer."""
        module = self.projection.module if isinstance(self.projection, SharedProjection) else self.projection
        projection = inside(module)
        check_bias_order(self.bias_order, projection.commutes and projection.shared_by_heads)
        dims = projection.checked_slots(self.projected_dim, self.num_heads)
        if self.causal and not isinstance(projection, FullAttention):
            shorter_input, seq_len = projection.shorter_input, projection.seq_len
            check_causal(type(projection), shorter_input, seq_len, min(dims), self.sliding_window)
        return module, projection, dims

    def _compresses_first(
        self, projection: SequenceProjection, seq_len: int, dims: Sequence[int], kernels: Kernels
    ) -> bool:
        """Whether (E·X)·W + (E·r)⊗b may and should replace E·(X·W + r⊗b): W then runs on k rows instead of n."""
        if _is_exact(projection, seq_len, dims, kernels):  # `make_slots` takes the tokens as slots
            return False
        if self.bias_order == "after_projection":  # (E·X)·W + 1⊗b by definition
            return True
        are_linear = projection.commutes and projection.shared_by_heads
        if not (are_linear and is_affine(self.k_proj) and is_affine(self.v_proj)):
            return False
        # An exported program uses one order for all lengths. Windows of short texts are few, however many slots there
        # are.
        return kernels.exporting or projection.windowed or seq_len > max(dims)

    @property
    def is_full(self) -> bool:
        """Whether this is full attention (equation 2)."""
        return isinstance(self.projection, FullAttention)

    def extra_repr(self) -> str:
        parts = [f"{self.embed_dim}, num_heads={self.num_heads}, bias_order={self.bias_order}"]
        beyond = ("sliding_window", "global_tokens", "causal")
        parts += [f"{name}={value}" for name in beyond if (value := getattr(self, name))]
        return ", ".join(parts)


class Layout(NamedTuple):
    """What the queries of a layer see."""

    dims: tuple[int, ...]  # k of each head
    sliding_window: int = 0  # w, the number of tokens that each query sees
    global_tokens: int = 0  # g, the number of tokens at the start that all queries see, as slots before the others
    causal: bool = False  # whether queries see no later tokens


def make_slots(projection: nn.Module, tokens: Tokens, layout: Layout, layer: ProjectedAttention | None = None) -> Slots:
    """The slots of keys and values: E·X of the tokens after the global ones, which are slots before them.

    Args:
        projection: E and F.
        tokens: X, mapped by W_K and W_V or, with a `layer`, not.
        layout: What queries see; with a window, also the tokens themselves.
        layer: Its W_K and W_V map the slots, and those tokens that queries see as they are; None: the tokens are
            mapped.
    """
    (dims, width, first, causal), forward_pass = layout, tokens.forward_pass
    if layer is None:
        key, value = (
            zero_padding(each, forward_pass.lengths) for each in (tokens.key, tokens.values)
        )  # the biases too
        tokens = tokens._replace(key=key, value=value)
        if _is_exact(inside(projection), key.shape[2] - first, dims, forward_pass.kernels):
            # Full attention (equation 2): each token is its own slot; padding comes after all real queries.
            real = (
                None
                if forward_pass.lengths is None or causal
                else real_tokens(forward_pass.lengths, key.shape[2])[:, None]
            )
            return Slots(key, value, real, is_causal=causal)
    rest = tokens.after(first) if first else tokens

    def compress(number: int) -> Slots:
        compressed = projection(rest, number)
        key, value = compressed[:2] if layer is None else layer.map_slots(compressed, forward_pass.kernels)
        if compressed.sizes is None:
            return Slots(key, value)
        sizes = compressed.sizes[:, None]  # for all heads
        may_be_empty = forward_pass.lengths is not None or forward_pass.kernels.exporting
        return Slots(key, value, sizes > 0 if may_be_empty else None, sizes)

    slots = compress(dims[0]) if len({*dims}) == 1 else Slots.for_heads(compress, dims)
    if not (first or width):
        return slots
    seen = tokens if layer is None else layer.map_tokens(tokens if width else tokens.until(first))
    if first:
        slots = slots.after_tokens(seen.key[:, :, :first], seen.values[:, :, :first], forward_pass.lengths)
    if not width:
        return slots
    # Slots count for the tokens only that a query does not see.
    edges = None if slots.sizes is None else F.pad(slots.sizes.cumsum(-1), (1, 0))
    window = Window(width, causal, lengths=forward_pass.lengths)
    return slots._replace(neighbours=Neighbours(seen.key, seen.values, window, edges))


def _is_exact(projection: SequenceProjection, seq_len: int, dims: Sequence[int], kernels: Kernels) -> bool:
    """Whether each token is a slot of its own; but an exported program runs with all lengths."""
    longest = projection.exact_length(min(dims))
    return longest == math.inf or (not kernels.exporting and seq_len <= longest)


def _map_rows(linear: nn.Module, rows: Tensor, sums: Tensor | None, kernels: Kernels) -> Tensor:
    """(E·X)·W + (E·r)⊗b; without row sums f(E·X) = (E·X)·W + 1⊗b."""
    if sums is None or linear.bias is None:
        return kernels.apply_linear(linear, rows)
    assert isinstance(linear, nn.Linear)
    if kernels.calls_modules:
        mapped = linear(rows)
        return mapped + ((sums - 1)[..., None] * linear.bias).to(mapped.dtype)
    # Not f(E·X) + (E·r - 1)⊗b: if E·r is small, b would be added with rounding errors and then subtracted again.
    mapped = kernels.linear(rows, linear.weight)
    return mapped + (sums[..., None] * linear.bias).to(mapped.dtype)


def check_bias_order(bias_order: str, is_one_map: bool) -> None:
    """Raise an error for biases after E and F that are not one linear map of all heads."""
    if bias_order == "after_projection" and not is_one_map:
        expected = "before_projection, unless E and F are linear and the same for all heads"
        raise InputError(f"bias_order: expected {expected}, got {bias_order}")


def check_causal(
    projection: type[SequenceProjection], shorter_input: str, seq_len: int, slots: int, sliding_window: int
) -> None:
    """Raise an error for slots with which a query would see a later token, or would not see an earlier one.

    A query sees a slot once its window is complete. So slots must stand for windows whose place does not depend on the
    length of the text, and the tokens of a window that is not complete must be in the sliding window.
    """
    if not projection.windowed:
        name = next((name for name, kind in PROJECTIONS.items() if kind is projection), projection.__name__)
        expected = "one with windows (such as mean_pool), or full attention, with causal"
        raise InputError(f"projection: expected {expected}, got {name!r}")
    check_input(shorter_input == "prefix", "shorter_input", "prefix with causal", shorter_input)
    least = -(-seq_len // slots)
    expected = f"at least {least} with causal, as many tokens as a slot stands for"
    check_input(sliding_window >= least, "sliding_window", expected, sliding_window)


def is_affine(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is known to compute X·W + 1·b: it has `nn.Linear`'s own forward and no hooks.

    Global hooks do not count: torch has them for debugging and profiling, which should see the order that runs without
    them.
    """
    return type(module).forward is nn.Linear.forward and not has_hooks(module)
