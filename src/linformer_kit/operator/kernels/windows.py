"""Means of the tokens in windows: in one pass over the tokens, or as products with rows of ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.operator.conditions import is_ordinary, must_be_plain, needs_gradient
from linformer_kit.operator.kernels.products import widened
from linformer_kit.operator.padding import take_positions


def window_means(
    hidden: Float[Tensor, "batch seq_len embed"],
    positions: Int[Tensor, "batch_or_1 slots window"],
    real: Bool[Tensor, "batch_or_1 slots window"],
) -> Float[Tensor, "batch slots embed"]:
    """The mean of the real tokens in each window, summed in float32 or wider; 0 for a window without any.

    Args:
        hidden: The tokens.
        positions: Positions of the tokens in each window; at places without a real token, of any with finite numbers.
        real: Where there is a real token.
    """
    if not _suits_embedding_bag(hidden):
        return _by_products(hidden, positions, real)
    batch, length, _ = hidden.shape
    places = positions + length * torch.arange(batch, device="cpu")[:, None, None]
    real = real.expand_as(places)
    sizes = real.sum(dim=2).flatten()
    means = F.embedding_bag(places[real], hidden.flatten(0, 1), sizes.cumsum(0) - sizes, mode="mean")
    return means.unflatten(0, (batch, positions.shape[1]))


def _suits_embedding_bag(hidden: Tensor) -> bool:
    """Whether the sums may be those of `embedding_bag`, 5 to 10 times as fast as products; in float16 they overflow."""
    return not must_be_plain() and not needs_gradient(hidden) and is_ordinary(hidden) and hidden.dtype != torch.float16


def _by_products(hidden: Tensor, positions: Tensor, real: Tensor) -> Tensor:
    """The means as products with rows of ones, which have gradients and are several times as fast as sums.

    Ones become 2⁻ᶜ, so that no sum overflows.
    """
    inside = take_positions(hidden, positions.flatten(1)).unflatten(1, tuple(positions.shape[1:]))
    scale = 2.0 ** int(real.shape[2]).bit_length()
    ones = (real.to(hidden.dtype) / scale)[:, :, None]
    sums = widened(torch.matmul, ones, inside)[:, :, 0]
    count = real.sum(dim=2).clamp(min=1)[..., None].to(torch.promote_types(hidden.dtype, torch.float32))
    return (sums * (scale / count)).to(hidden.dtype)
