"""W_K and W_V for projections: called as modules; weights are read only from plain `nn.Linear` modules.

A module that replaces them (an adapter, a pruned, quantised or offloaded map, one with hooks) is called on every token,
because the cheap order of multiplications needs a map known to be affine; with `bias_order` `after_projection`,
fairseq's order, it is called on E·X.

Axes as in `slots`.
"""

from __future__ import annotations

import copy
from typing import TypeGuard

from jaxtyping import Bool, Float
from torch import Tensor, nn

from linformer_kit.operator import kernels
from linformer_kit.operator.hooks import has_hooks, is_replaced
from linformer_kit.operator.padding import zero_padding
from linformer_kit.operator.slots import split_heads


def is_affine(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is known to compute X·W + 1·b: it has `nn.Linear`'s own forward and no hooks.

    Global hooks do not count: torch has them for debugging and profiling, which should see the order that runs without
    them.
    """
    return type(module).forward is nn.Linear.forward and not has_hooks(module)


class HeadMap:
    """W_K or W_V, f(X) = X·W + 1·b, and its order relative to the projection.

    Args:
        module: f; None if keys or values are mapped already, f(X) = X.
        num_heads: h.
        bias_order: `before_projection`, E·(X·W + m·b), or `after_projection`, E·(X·W) + 1·b; m is 1 on real tokens and
            0 on padding.
    """

    def __init__(self, module: nn.Module | None, num_heads: int, bias_order: str = "before_projection") -> None:
        self.module = module
        self.num_heads = num_heads
        self.bias_first = bias_order == "before_projection"
        self._mapped: tuple[Tensor, Tensor] | None = None  # the last inputs of `mapped`, and its result

    def after(self, tokens: int, inputs: Tensor, rest: Tensor) -> HeadMap:
        """The map for `rest`, the inputs after the first tokens; nothing known from all inputs is computed again."""
        later = copy.copy(self)
        if self._mapped is not None and self._mapped[0] is inputs:
            later._mapped = rest, self._mapped[1][:, tokens:]
        return later

    def mapped_tokens(self, inputs: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        """f(X) for full attention; includes the bias with either bias_order."""
        return inputs if self.module is None else kernels.apply_linear(self.module, inputs)

    @property
    def commutes(self) -> bool:
        """Whether f and E may be exchanged, which needs an affine f."""
        return self.module is None or is_affine(self.module)

    @property
    def runs_first(self) -> bool:
        """Whether f must run on every token, before E."""
        return self.bias_first and not self.commutes

    def in_order(
        self, inputs: Float[Tensor, "batch seq_len embed"], padding_mask: Bool[Tensor, "batch seq_len"] | None
    ) -> tuple[Float[Tensor, "batch seq_len embed"], HeadMap]:
        """Run the map now if it `runs_first`; returns the tokens and the map that remains to be applied."""
        if not self.runs_first:
            return inputs, self
        return self.mapped(inputs, padding_mask), HeadMap(None, self.num_heads)

    def mapped(
        self, inputs: Float[Tensor, "batch seq_len embed"], padding_mask: Bool[Tensor, "batch seq_len"] | None
    ) -> Float[Tensor, "batch seq_len embed"]:
        """X·W + m·b, or X·W if the bias is added after the projection; zero where padded."""
        if self.module is None:
            return inputs
        if self._mapped is None or self._mapped[0] is not inputs:
            mapped = kernels.apply_linear(self.module, inputs)
            bias = None if self.bias_first else self._at_zero(inputs)
            self._mapped = inputs, zero_padding(mapped if bias is None else mapped - bias, padding_mask)
        return self._mapped[1]

    def __call__(
        self, inputs: Float[Tensor, "batch seq_len embed"], padding_mask: Bool[Tensor, "batch seq_len"] | None
    ) -> Float[Tensor, "batch seq_len heads head_dim"]:
        """`mapped`, split into heads."""
        return self.mapped(inputs, padding_mask).unflatten(2, (self.num_heads, -1))

    def tokens(
        self, inputs: Float[Tensor, "batch seq_len embed"], padding_mask: Bool[Tensor, "batch seq_len"] | None
    ) -> Float[Tensor, "batch heads seq_len head_dim"]:
        """f(X) of every token, split into heads, as a query sees it; finite where padded."""
        return self.add_bias(split_heads(self.mapped(inputs, padding_mask), self.num_heads), None)

    def add_bias(
        self, slots: Float[Tensor, "batch group slots head_dim"], heads: list[int] | None
    ) -> Float[Tensor, "batch group slots head_dim"]:
        """Add 1·b to slots of some heads, computed from `mapped` tokens, if the bias comes after the projection."""
        bias = None if self.bias_first or self.module is None else self._at_zero(slots, slots.shape[3] * self.num_heads)
        if bias is None:
            return slots
        bias = bias.unflatten(-1, (self.num_heads, -1))
        return slots + (bias if heads is None else bias[heads])[:, None].to(slots.dtype)

    def of_compressed(
        self, compressed: Float[Tensor, "batch rows embed"], row_sums: Float[Tensor, "*batch rows"] | None = None
    ) -> Float[Tensor, "batch heads rows head_dim"]:
        """The same result from E·X, with W on k rows instead of n: (E·X)·W + (E·m)⊗b, or f(E·X) = (E·X)·W + 1⊗b.

        `row_sums` is E·m; None: 1.
        """
        if self.module is None:
            mapped = compressed
        elif row_sums is None or not self.bias_first or self.module.bias is None:
            mapped = kernels.apply_linear(self.module, compressed)
        else:
            mapped = self._with_scaled_bias(compressed, row_sums)
        return split_heads(mapped, self.num_heads)

    def _with_scaled_bias(self, compressed: Tensor, row_sums: Tensor) -> Tensor:
        """(E·X)·W + (E·m)⊗b of an affine map."""
        assert isinstance(self.module, nn.Linear)
        weight, bias = self.module.weight, self.module.bias
        if is_replaced(self.module):  # global hooks, such as a profiler's, should see the call
            mapped = self.module(compressed)
            return mapped + ((row_sums - 1)[..., None] * bias).to(mapped.dtype)
        # Not f(E·X) + (E·m - 1)⊗b: if E·m is small, b would be added with rounding errors and then subtracted again.
        mapped = kernels.linear(compressed, weight)
        return mapped + (row_sums[..., None] * bias).to(mapped.dtype)

    def _at_zero(self, like: Tensor, width: int | None = None) -> Float[Tensor, " embed"] | None:
        """f(0), which is b; None if there is none."""
        assert self.module is not None
        if is_affine(self.module):
            return self.module.bias
        return self.module(like.new_zeros(1, 1, like.shape[-1] if width is None else width))[0, 0]


def of_heads(tensor: Tensor, heads: list[int] | None, dim: int) -> Tensor:
    """Select heads of a tensor on axis `dim`; None: all heads."""
    return tensor if heads is None else tensor[(slice(None),) * dim + (heads,)]
