"""W_K and W_V as a projection uses them: before it or after it, for all heads or some.

Axes as in `functional`.
"""

from __future__ import annotations

from torch import Tensor, nn

from linformer_kit.functional import split_heads, zero_padding
from linformer_kit.kernels import linear


class HeadMap:
    """W_K or W_V with its bias, for all heads or some of them, in the order that `bias_order` wants."""

    def __init__(self, linear: nn.Linear, num_heads: int, bias_order: str) -> None:
        self.linear = linear
        self.num_heads = num_heads
        self.head_dim = linear.out_features // num_heads
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
            mapped = linear(inputs, weight)
        else:
            mapped = zero_padding(linear(inputs, weight, bias), padding_mask)
        return mapped.unflatten(2, (self.num_heads if heads is None else len(heads), -1))

    def add_bias(self, slots: Tensor, heads: list[int] | None) -> Tensor:
        """Slots + 1·b where the bias comes after the projection. `[batch, heads, slots, head_dim]`."""
        bias = self._of(heads)[1]
        if bias is None or self.bias_first:
            return slots
        return slots + bias.to(slots.dtype).view(slots.shape[1], 1, -1)

    def project(self, matrices: Tensor, inputs: Tensor, heads: list[int] | None, padding_mask: Tensor | None) -> Tensor:
        """The order of the paper, E·(X·W + m·b), or E·(X·W), to which `add_bias` adds 1·b."""
        return matrices @ self(inputs, heads, padding_mask).transpose(1, 2)

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
            mapped = linear(compressed, weight, bias)
        else:
            mapped = linear(compressed, weight)
            mapped = mapped + ((row_sums * scale)[..., None] * bias).to(mapped.dtype)
        return split_heads(mapped, self.num_heads if heads is None else len(heads))


class SplitMap:
    """Stands for a `HeadMap` where W_K or W_V has been applied already, so that only heads are to be told apart."""

    def __init__(self, num_heads: int, width: int) -> None:
        self.num_heads = num_heads
        self.head_dim = width // num_heads

    def _of(self, hidden: Tensor, heads: list[int] | None) -> Tensor:
        """`[batch, rows, heads, head_dim]` of `[batch, rows, embed]`."""
        split = hidden.unflatten(2, (self.num_heads, -1))
        return split if heads is None else split[:, :, heads]

    def __call__(self, inputs: Tensor, heads: list[int] | None, padding_mask: Tensor | None) -> Tensor:
        return self._of(inputs, heads)

    def add_bias(self, slots: Tensor, heads: list[int] | None) -> Tensor:
        return slots

    def project(self, matrices: Tensor, inputs: Tensor, heads: list[int] | None, padding_mask: Tensor | None) -> Tensor:
        return matrices @ self._of(inputs, heads).transpose(1, 2)

    def of_compressed(
        self, compressed: Tensor, heads: list[int] | None, row_sums: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        return self._of(compressed if scale == 1 else compressed * scale, heads).transpose(1, 2)
