"""Multi-head attention over k projected slots: equation 7 of Wang et al. 2020.

    head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V        output = Concat(head_1 … head_h)·W_O

With biases there are two orders of the products, of which the second multiplies k rows by W instead of n:

    E·(X·W + r⊗b)  =  (E·X)·W + (E·r)⊗b        r is 1 on real tokens and 0 on padding

Every sequence is right-padded here, and `lengths` says how many of its tokens are real (None: all). `drop_in` has the
public layer, which takes any padding and layout; `reference.equation_7` is the same equation as plain code, one head
and one sequence at a time. Axes as in `slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from linformer_cli.errors import InputError
from linformer_kit.operator.conditions import has_hooks
from linformer_kit.operator.kernels import Kernels, choose
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import padding_after, zero_padding
from linformer_kit.operator.projections import Compressed, FullAttention, SequenceProjection, SharedProjection, inside
from linformer_kit.operator.slots import Slots, attend_slots, merge_heads, split_heads


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
    ) -> None:
        super().__init__()
        declared = projection.module if isinstance(projection, SharedProjection) else projection
        check_bias_order(bias_order, declared.commutes and declared.shared_by_heads)
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

    def forward(
        self,
        query: Float[Tensor, "batch query_len embed"],
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        lengths: Int[Tensor, " batch"] | None = None,
        need_weights: bool = False,
        kernels: Kernels | None = None,
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """Compute attention.

        Args:
            query: Input of the queries; with a sliding window those of the positions of the keys.
            key: Input of the keys, with zeros at padding (`padding.zero_padding`).
            value: Input of the values; the same tensor object as `key` if they are equal, so that E·X is computed once.
            lengths: Number of real tokens of each sequence; None: all.
            need_weights: Whether to return the context mapping P̄.
            kernels: Those of this forward pass; None: they are chosen here.

        Returns:
            The output, and P̄ or None; see `LinformerAttention.forward`.

        Raises:
            InputError: for a sequence longer than the projection allows, and a projection with other heads or fewer
                slots.
        """
        kernels = kernels or choose(key)
        slots = self.project(key, value, lengths, kernels=kernels)
        output, weights = self.attend(query, slots, need_weights, kernels=kernels)
        if weights is not None and self.sliding_window and slots.neighbours is None and not self.is_full:
            weights = F.pad(weights, (0, self.sliding_window))  # each token is a slot
        return output, weights

    def project(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        kernels: Kernels,
    ) -> Slots:
        """The slots E·K·W_K and F·V·W_V, which all queries share; arguments as of `forward`.

        Global tokens become slots before the others, which hold the rest; with a sliding window the keys and values of
        all tokens are there too.
        """
        # Looked up at every call, so that a replacement is used.
        called = self.projection.module if isinstance(self.projection, SharedProjection) else self.projection
        declared = inside(called)
        dims = declared.checked_slots(self.projected_dim, self.num_heads)
        check_bias_order(self.bias_order, declared.commutes and declared.shared_by_heads)  # E, F may be replaced ones
        if self._compresses_first(declared, key.shape[1] - self.global_tokens, dims, kernels.exporting):
            return self._compressed_then_mapped(called, key, value, lengths, dims, kernels)  # (E·X)·W + (E·r)⊗b
        return project_heads(  # E·(X·W + r⊗b)
            called,
            self._mapped(self.k_proj, key, kernels),
            self._mapped(self.v_proj, value, kernels),
            lengths,
            kernels=kernels,
            source=key[:, self.global_tokens :],
            projected_dim=self.projected_dim,
            sliding_window=self.sliding_window,
            global_tokens=self.global_tokens,
        )

    def attend(
        self,
        query: Float[Tensor, "batch query_len embed"],
        slots: Slots,
        need_weights: bool = False,
        *,
        kernels: Kernels,
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """softmax(Q·W_Q·slotsᵀ/√d)·slots for each query, the heads concatenated, and W_O."""
        dropout = self.dropout if self.training else 0.0
        queries = self._mapped(self.q_proj, query, kernels)
        heads, weights = attend_slots(queries, slots, kernels, dropout=dropout, need_weights=need_weights)
        return kernels.apply_linear(self.out_proj, merge_heads(heads)), weights

    def _compresses_first(
        self, projection: SequenceProjection, seq_len: int, dims: Sequence[int], exporting: bool
    ) -> bool:
        """Whether (E·X)·W + (E·r)⊗b may and should replace E·(X·W + r⊗b): W then runs on k rows instead of n."""
        if projection.is_exact_for(seq_len, min(dims), exporting):  # `project_heads` makes slots of the tokens
            return False
        if self.bias_order == "after_projection":  # (E·X)·W + 1⊗b by definition
            return True
        are_linear = projection.commutes and projection.shared_by_heads
        if not (are_linear and is_affine(self.k_proj) and is_affine(self.v_proj)):
            return False
        # An exported program uses one order for all lengths. Windows of short texts are few, however many slots there
        # are.
        return exporting or projection.windowed or seq_len > max(dims)

    def _compressed_then_mapped(
        self,
        projection: nn.Module,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        dims: Sequence[int],
        kernels: Kernels,
    ) -> Slots:
        """(E·X)·W + (E·r)⊗b; with the bias after the projection (E·X)·W + 1⊗b."""
        first, tokens = self.global_tokens, None
        if first or self.sliding_window:  # tokens that queries see as they are; no others are mapped
            seen = slice(None if self.sliding_window else first)
            seen_keys = self._mapped(self.k_proj, key[:, seen], kernels)
            seen_values = self._mapped(self.v_proj, value[:, seen], kernels)
            tokens = Neighbours(seen_keys, seen_values, self.sliding_window, lengths)
        rest = _lengths_after(lengths, first) if first else lengths
        may_be_empty = rest is not None or kernels.exporting
        keys = key[:, None, first:]
        values = keys if value is key else value[:, None, first:]

        def compress(slots: int) -> Slots:
            sums = self.bias_order == "before_projection"
            compressed = projection(keys, values, rest, slots, source=keys[:, 0], sums=sums, kernels=kernels)
            key_rows = _mapped_rows(self.k_proj, compressed.key[:, 0], compressed.key_sums, kernels)
            value_rows = _mapped_rows(self.v_proj, compressed.value[:, 0], compressed.value_sums, kernels)
            heads = self.num_heads
            return _slots_of(compressed, split_heads(key_rows, heads), split_heads(value_rows, heads), may_be_empty)

        slots = _of_all_heads(compress, dims)
        return slots if tokens is None else _with_tokens(slots, tokens, first)

    def _mapped(self, linear: nn.Module, tokens: Tensor, kernels: Kernels) -> Tensor:
        """X·W + 1·b of each token, by heads."""
        return split_heads(kernels.apply_linear(linear, tokens), self.num_heads)

    @property
    def is_full(self) -> bool:
        """Whether this is full attention (equation 2)."""
        return isinstance(self.projection, FullAttention)

    def extra_repr(self) -> str:
        parts = [f"{self.embed_dim}, num_heads={self.num_heads}, bias_order={self.bias_order}"]
        parts += [f"{name}={value}" for name in ("sliding_window", "global_tokens") if (value := getattr(self, name))]
        return ", ".join(parts)


def project_heads(
    projection: nn.Module,
    key: Float[Tensor, "batch heads seq_len head_dim"],
    value: Float[Tensor, "batch heads seq_len head_dim"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    kernels: Kernels,
    source: Float[Tensor, "batch rest embed"] | None = None,
    projected_dim: int | Sequence[int] | None = None,
    sliding_window: int = 0,
    global_tokens: int = 0,
) -> Slots:
    """The slots E·(K·W_K) and F·(V·W_V) of keys and values that W_K and W_V have mapped already.

    Args:
        projection: E and F.
        key: K·W_K, right-padded.
        value: V·W_V.
        lengths: Number of real tokens of each sequence; None: all.
        kernels: Those of this forward pass.
        source: The input of the keys after the global tokens; None: the mapped keys.
        projected_dim: k, or one for each head; None: those of the projection.
        sliding_window: w, the number of tokens that each query sees.
        global_tokens: g, the number of tokens at the start that all queries see.
    """
    declared, first = inside(projection), global_tokens
    dims = declared.checked_slots(projected_dim, key.shape[1])
    key, value = zero_padding(key, lengths), zero_padding(value, lengths)
    if declared.is_exact_for(key.shape[2] - first, min(dims), kernels.exporting):
        padding = None if lengths is None else padding_after(lengths, key.shape[2])[:, None]
        return Slots(key, value, padding)  # full attention (equation 2): each token is its own slot
    rest = _lengths_after(lengths, first) if first else lengths
    may_be_empty = rest is not None or kernels.exporting
    keys, values = key[:, :, first:], value[:, :, first:]
    source = merge_heads(keys) if source is None else source

    def compress(slots: int) -> Slots:
        compressed = projection(keys, values, rest, slots, source=source, kernels=kernels)
        return _slots_of(compressed, compressed.key, compressed.value, may_be_empty)

    tokens = Neighbours(key, value, sliding_window, lengths)
    return _with_tokens(_of_all_heads(compress, dims), tokens, first)


def _of_all_heads(compress: Callable[[int], Slots], dims: Sequence[int]) -> Slots:
    """The slots of all heads; `compress` makes them for a k."""
    return compress(dims[0]) if len({*dims}) == 1 else Slots.for_heads(compress, dims)


def _lengths_after(lengths: Tensor | None, first: int) -> Tensor | None:
    """The lengths of sequences without their first tokens."""
    return None if lengths is None else (lengths - first).clamp(min=0)


def _with_tokens(slots: Slots, tokens: Neighbours, first: int) -> Slots:
    """The slots, with the first tokens as slots before them, and with the neighbours of each query (window 0: none)."""
    if first:
        slots = slots.after_tokens(tokens.key[:, :, :first], tokens.value[:, :, :first], tokens.lengths)
    return slots.with_neighbours(tokens) if tokens.window else slots


def _slots_of(compressed: Compressed, key: Tensor, value: Tensor, may_be_empty: bool) -> Slots:
    if compressed.sizes is None:
        return Slots(key, value)
    sizes = compressed.sizes[:, None]  # for all heads
    return Slots(key, value, sizes == 0 if may_be_empty else None, sizes)


def _mapped_rows(linear: nn.Module, rows: Tensor, sums: Tensor | None, kernels: Kernels) -> Tensor:
    """(E·X)·W + (E·r)⊗b; without row sums f(E·X) = (E·X)·W + 1⊗b."""
    if sums is None or linear.bias is None:
        return kernels.apply_linear(linear, rows)
    assert isinstance(linear, nn.Linear)
    if kernels.calls_modules:  # global hooks, such as a profiler's, should see the call
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


def is_affine(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is known to compute X·W + 1·b: it has `nn.Linear`'s own forward and no hooks.

    Global hooks do not count: torch has them for debugging and profiling, which should see the order that runs without
    them.
    """
    return type(module).forward is nn.Linear.forward and not has_hooks(module)
