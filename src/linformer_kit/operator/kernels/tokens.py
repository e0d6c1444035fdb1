"""Blocks of tokens: token-wise functions run on one block at a time, so that activations stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from linformer_kit.operator.conditions import may_need_whole, must_be_plain

_BLOCK_TOKENS = 512  # per thread; with fewer, reading the weights takes longer than the products
_LEAST_TOKENS = 4096  # with smaller blocks, the slowest core is waited for more often
_BLOCK_ELEMENTS = 3 << 19  # elements of the widest activation of a block that fit in the cache with the others


def runs_in_blocks(module: nn.Module, tokens: Shaped[Tensor, "batch seq_len *embed"], width: int) -> bool:
    """Whether a token-wise module should run block by block.

    True for large inputs in inference on a CPU: there the activations of a block stay in the cache, and only one block
    needs memory. False in training mode, with hooks or foreign classes in the module, or with mixed dtypes.

    Args:
        module: The module.
        tokens: Its input, ids or hidden states.
        width: Width of its widest activation.
    """
    if (
        must_be_plain()
        or tokens.device.type != "cpu"
        or tokens.shape[:2].numel() <= block_tokens(width)
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
    ):
        return False
    dtypes = {parameter.dtype for parameter in module.parameters()}
    dtypes |= {tokens.dtype} if tokens.is_floating_point() else set()
    return len(dtypes) == 1 and not any(
        part.training or (part is not module and may_need_whole(part)) for part in module.modules()
    )


def block_tokens(width: int) -> int:
    """Tokens in a block whose widest activation has this width."""
    return max(_LEAST_TOKENS, _BLOCK_TOKENS * torch.get_num_threads(), _BLOCK_ELEMENTS // width)


def blocks(batch: int, length: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """Samples and positions of blocks that cover a batch, with at most `tokens` tokens each and about equal sizes.

    A block is a part of one sequence, or several whole ones.
    """
    samples = max(1, tokens // max(1, length))
    parts = -(-length // tokens)
    for start in range(0, batch, samples):
        for part in range(parts):
            yield slice(start, start + samples), slice(part * length // parts, (part + 1) * length // parts)
