"""Blocks of tokens: functions of single tokens run on a part of them at a time, so that activations stay in cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linformer_kit.operator.hooks import may_need_whole
from linformer_kit.operator.kernels.conditions import must_be_plain

_BLOCK_TOKENS = 512  # for each thread; with fewer, reading the weights costs more than the products
_BLOCK_ELEMENTS = 3 << 19  # of the widest activation of a block: with its neighbours it stays in the cache


def runs_in_blocks(module: nn.Module, hidden: Float[Tensor, "batch seq_len embed"], width: int) -> bool:
    """Whether a function of single tokens runs faster over blocks of them, one after the other.

    In inference on a CPU: there the activations of a block stay in the cache, and only one block's take memory. Not
    with dropout, where a part has hooks or a foreign class, or where dtypes are mixed.

    Args:
        module: What runs.
        hidden: Its input.
        width: Of its widest activation.
    """
    return (
        is_large(hidden, width)
        and not any(part.training or (part is not module and may_need_whole(part)) for part in module.modules())
        and all(parameter.dtype == hidden.dtype for parameter in module.parameters())
    )


def is_large(hidden: Float[Tensor, "batch seq_len embed"], width: int) -> bool:
    """Whether there is more than one block of tokens, in inference on a CPU."""
    return (
        not must_be_plain()
        and hidden.device.type == "cpu"
        and hidden.shape[:2].numel() > block_tokens(width)
        and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    )


def block_tokens(width: int) -> int:
    """Tokens in a block whose widest activation has this width."""
    return max(_BLOCK_TOKENS * max(2, torch.get_num_threads()), _BLOCK_ELEMENTS // width)


def blocks(batch: int, length: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """Samples and positions of blocks that cover a batch, each of at most `tokens` tokens and about equally many.

    A block is a part of one sequence, or several whole ones.
    """
    samples = max(1, tokens // max(1, length))
    parts = -(-length // tokens)
    for start in range(0, batch, samples):
        for part in range(parts):
            yield slice(start, start + samples), slice(part * length // parts, (part + 1) * length // parts)
