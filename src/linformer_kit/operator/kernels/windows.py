"""Means of the tokens in windows in one pass over the tokens, by `embedding_bag`.

In inference a linearised MiniLM with means as products takes 1.1 to 1.2 times as long on AVX-512 with bfloat16.
The plain operations are `projections.windows.Windows.means`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.operator.conditions import is_ordinary, must_be_plain, needs_gradient


def suits_embedding_bag(hidden: Tensor) -> bool:
    """Whether `window_means` may be used: on a CPU without gradients, and not in float16, where sums overflow."""
    return not must_be_plain() and not needs_gradient(hidden) and is_ordinary(hidden) and hidden.dtype != torch.float16


def window_means(
    hidden: Float[Tensor, "batch seq_len embed"],
    positions: Int[Tensor, "batch_or_1 slots window"],
    real: Bool[Tensor, "batch_or_1 slots window"],
) -> Float[Tensor, "batch slots embed"]:
    """The mean of the tokens at the real positions of each window, summed in float32 or wider; 0 without any."""
    batch, length, _ = hidden.shape
    places = positions + length * torch.arange(batch, device="cpu")[:, None, None]
    real = real.expand_as(places)
    sizes = real.sum(dim=2).flatten()
    means = F.embedding_bag(places[real], hidden.flatten(0, 1), sizes.cumsum(0) - sizes, mode="mean")
    return means.unflatten(0, (batch, positions.shape[1]))
