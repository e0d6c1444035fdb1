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
from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.conditions import has_hooks
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import padding_after, zero_padding
from linformer_kit.operator.projections import (
    PROJECTIONS,
    Compressed,
    FullAttention,
    SequenceProjection,
    SharedProjection,
    inside,
)
from linformer_kit.operator.slots import ForwardPass, Slots, attend_slots, merge_heads, split_heads


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
        run: ForwardPass | None = None,
        need_weights: bool = False,
        slots: Slots | None = None,
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """Compute attention.

        Args:
            query: Input of the queries; with a sliding window those of the positions of the keys.
            key: Input of the keys, with zeros at padding (`padding.zero_padding`).
            value: Input of the values; None: that of the keys, so that E·X is computed once.
            run: The forward pass; None: of this layer alone, without padding.
            need_weights: Whether to return the context mapping P̄.
            slots: The slots; None: those of the keys.

        Returns:
            The output, and P̄ or None; see `LinformerAttention.forward`.

        Raises:
            InputError: for a sequence longer than the projection allows, and a projection with other heads or fewer
                slots.
        """
        run = ForwardPass.of(key, run)
        slots = self.project(key, value, run) if slots is None else slots
        output, weights = self.attend(query, slots, run.kernels, need_weights)
        if weights is not None and self.sliding_window and slots.neighbours is None and not self.is_full:
            weights = F.pad(weights, (0, self.sliding_window))  # each token is a slot
        return output, weights

    def project(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"] | None,
        run: ForwardPass,
    ) -> Slots:
        """The slots E·K·W_K and F·V·W_V, which all queries share; arguments as of `forward`.

        Global tokens become slots before the others, which hold the rest; with a sliding window the keys and values of
        all tokens are there too.
        """
        first, window, kernels = self.global_tokens, self.sliding_window, run.kernels
        module, declared, dims = self.checked_projection()  # again: k may be set, and E and F may be replaced
        if not self._compresses_first(declared, key.shape[1] - first, dims, kernels):  # E·(X·W + r⊗b)
            keys, values = self.map_tokens(key, value, kernels)
            source = key[:, first:] if first else key
            return project_heads(module, keys, values, run, dims, window, first, causal=self.causal, source=source)

        def map_slots(compressed: Compressed) -> tuple[Tensor, Tensor]:  # (E·X)·W + (E·r)⊗b
            sums = compressed.sums if self.bias_order == "before_projection" else None
            of_keys, of_values = sums or (None, None)
            keys = _map_rows(self.k_proj, compressed.key.squeeze(1), of_keys, kernels)
            values = _map_rows(self.v_proj, compressed.value.squeeze(1), of_values, kernels)
            return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

        tokens = None
        if first or window:  # tokens that queries see as they are; no others are mapped
            seen = slice(None if window else first)
            keys, values = self.map_tokens(key[:, seen], None if value is None else value[:, seen], kernels)
            tokens = Neighbours(keys, values, window, run.lengths, is_causal=self.causal)
        unmapped = key.unsqueeze(1), None if value is None else value.unsqueeze(1)
        return _slots(module, *unmapped, run, dims, first, tokens, map_slots=map_slots)

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
        if _is_exact(projection, seq_len, dims, kernels):  # `project_heads` makes slots of the tokens
            return False
        if self.bias_order == "after_projection":  # (E·X)·W + 1⊗b by definition
            return True
        are_linear = projection.commutes and projection.shared_by_heads
        if not (are_linear and is_affine(self.k_proj) and is_affine(self.v_proj)):
            return False
        # An exported program uses one order for all lengths. Windows of short texts are few, however many slots there
        # are.
        return kernels.exporting or projection.windowed or seq_len > max(dims)

    def map_tokens(self, key: Tensor, value: Tensor | None, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """X·W + 1·b of keys and values, by heads."""
        keys = kernels.apply_linear(self.k_proj, key)
        values = kernels.apply_linear(self.v_proj, key if value is None else value)
        return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

    @property
    def is_full(self) -> bool:
        """Whether this is full attention (equation 2)."""
        return isinstance(self.projection, FullAttention)

    def extra_repr(self) -> str:
        parts = [f"{self.embed_dim}, num_heads={self.num_heads}, bias_order={self.bias_order}"]
        beyond = ("sliding_window", "global_tokens", "causal")
        parts += [f"{name}={value}" for name in beyond if (value := getattr(self, name))]
        return ", ".join(parts)


def project_heads(
    projection: nn.Module,
    key: Float[Tensor, "batch heads seq_len head_dim"],
    value: Float[Tensor, "batch heads seq_len head_dim"],
    run: ForwardPass,
    projected_dim: int | Sequence[int] | None = None,
    sliding_window: int = 0,
    global_tokens: int = 0,
    *,
    causal: bool = False,
    source: Float[Tensor, "batch rest embed"] | None = None,
) -> Slots:
    """The slots E·(K·W_K) and F·(V·W_V) of keys and values that W_K and W_V have mapped already.

    Args:
        projection: E and F.
        key: K·W_K, right-padded.
        value: V·W_V.
        run: The forward pass.
        projected_dim: k, or one for each head; None: those of the projection.
        sliding_window: w, the number of tokens that each query sees.
        global_tokens: g, the number of tokens at the start that all queries see.
        causal: Whether queries see no later tokens.
        source: The input of the keys after the global tokens; None: the mapped keys.
    """
    declared = inside(projection)
    dims = declared.checked_slots(projected_dim, key.shape[1])
    lengths = run.lengths
    key, value = zero_padding(key, lengths), zero_padding(value, lengths)
    if _is_exact(declared, key.shape[2] - global_tokens, dims, run.kernels):
        # Full attention (equation 2): each token is its own slot; padding comes after all real queries.
        padding = None if lengths is None or causal else padding_after(lengths, key.shape[2])[:, None]
        return Slots(key, value, padding, is_causal=causal)
    tokens = Neighbours(key, value, sliding_window, lengths, is_causal=causal)
    return _slots(projection, key, value, run, dims, global_tokens, tokens, source=source)


def _is_exact(projection: SequenceProjection, seq_len: int, dims: Sequence[int], kernels: Kernels) -> bool:
    """Whether each token is a slot of its own; but an exported program runs with all lengths."""
    longest = projection.exact_length(min(dims))
    return longest == math.inf or (not kernels.exporting and seq_len <= longest)


def _slots(
    projection: nn.Module,
    key: Tensor,
    value: Tensor | None,
    run: ForwardPass,
    dims: Sequence[int],
    first: int,
    tokens: Neighbours | None,
    *,
    source: Tensor | None = None,
    map_slots: Callable[[Compressed], tuple[Tensor, Tensor]] | None = None,
) -> Slots:
    """The slots of each head, of the tokens after the first ones; these are slots before them, as `tokens` has them.

    `map_slots` maps slots of one head of width d_m. With a window queries see all `tokens`.
    """
    if first:
        key, value = key[:, :, first:], None if value is None else value[:, :, first:]
        run = run._replace(lengths=None if run.lengths is None else (run.lengths - first).clamp(min=0))

    def compress(number: int) -> Slots:
        compressed = projection(key, value, number, run, source)
        keys, values = (compressed.key, compressed.value) if map_slots is None else map_slots(compressed)
        if compressed.sizes is None:
            return Slots(keys, values)
        sizes = compressed.sizes[:, None]  # for all heads
        may_be_empty = run.lengths is not None or run.kernels.exporting
        return Slots(keys, values, sizes == 0 if may_be_empty else None, sizes)

    slots = compress(dims[0]) if len({*dims}) == 1 else Slots.for_heads(compress, dims)
    if tokens is not None and first:
        slots = slots.after_tokens(tokens.key[:, :, :first], tokens.value[:, :, :first], tokens.lengths)
    if tokens is None or not tokens.window:
        return slots
    if slots.sizes is not None:  # slots count for the tokens only that a query does not see
        tokens = tokens._replace(edges=F.pad(slots.sizes.cumsum(-1), (1, 0)))
    return slots._replace(neighbours=tokens)


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
