"""The operations of a forward pass, as torch has them. `fast` has faster ones with the same results.

Axes as in `slots`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from linformer_kit.operator.neighbours import Blocks, Neighbours
from linformer_kit.operator.window import not_later


class Kernels:
    """Plain operations, for traced, exported, compiled and transformed (`torch.func`) code, and within `plain()`.

    Args:
        exporting: Whether code is being exported or traced: then the program must not depend on the lengths of the
            example.
    """

    is_plain = True
    device: str | None = None  # kind of device that these are for; None: any
    autocast: torch.dtype | None = None  # format of mixed precision, if torch is in that mode
    calls_modules = False  # whether there are hooks on all modules, such as a profiler's, which should see each call

    def __init__(self, *, exporting: bool = False) -> None:
        self.exporting = exporting

    def linear(
        self,
        inputs: Float[Tensor, "*rows columns"],
        weight: Float[Tensor, "out columns"],
        bias: Float[Tensor, "#out"] | None = None,
    ) -> Float[Tensor, "*rows out"]:
        """X·Wᵀ + 1·b."""
        return F.linear(inputs, weight, bias)

    def apply_linear(self, module: nn.Module, inputs: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows out"]:
        """Apply a linear module: a plain `nn.Linear` by `linear`; others, and those with hooks, are called."""
        return module(inputs)

    def feed_forward(
        self, first: nn.Module, second: nn.Module, inputs: Float[Tensor, "*rows columns"]
    ) -> Float[Tensor, "*rows out"]:
        """second(GELU(first(inputs))) for two linear modules, applied as by `apply_linear`."""
        return second(F.gelu(first(inputs)))

    def compress(
        self, matrix: Float[Tensor, "*batch projected seq_len"], hidden: Float[Tensor, "batch seq_len embed"]
    ) -> Float[Tensor, "batch projected embed"]:
        """E·X of each sequence, with one E for all sequences or one for each."""
        return matrix @ hidden

    def widened(self, function: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
        """function(*tensors); in a format that the processor has no instructions for, in float32 and rounded once."""
        return function(*tensors, **options)

    def attention(
        self,
        query: Float[Tensor, "batch heads query_len head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        mask: Bool[Tensor, "batch_or_1 heads_or_1 1 keys"] | None = None,
        neighbours: Neighbours | None = None,
        *,
        is_causal: bool = False,
        dropout: float = 0.0,
    ) -> Float[Tensor, "batch heads query_len head_dim"]:
        """softmax(Q·Kᵀ/√d)·V in one softmax with the neighbours, without the whole query_len × keys matrix in memory.

        Args:
            query: Queries, in the order of the neighbours.
            key: Keys of the slots.
            value: Values of the slots.
            mask: True where a slot may be attended to; at least one slot in each sequence.
            neighbours: Keys and values of the tokens that queries see besides.
            is_causal: Without mask and neighbours: whether queries, those of the last slots, see no later slots.
            dropout: Dropout on the weights.
        """
        if neighbours is None:
            if is_causal and query.shape[2] < key.shape[2]:  # torch takes queries for those of the first slots
                mask = not_later(query, key)
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal and mask is None)
        blocks = Blocks.of(query, key, value, mask, neighbours)
        context = F.scaled_dot_product_attention(blocks.query, blocks.key, blocks.value, blocks.bias, dropout)
        return blocks.joined(context).transpose(1, 2)
