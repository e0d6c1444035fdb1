"""E and F fitted to attention that is there: what projections that know the data could give.

Axes: texts, heads, n (positions), d (head_dim), k (slots).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from linformer_kit.analysis.theorems import Heads, window_means

_LEARNING_RATE = 1e-3  # with more, real attention overshoots: its keys have a large mean, which row sums of E multiply
_TEXTS_TOGETHER = 2


def fit_projections(
    heads: Heads, k: int, *, steps: int, generator: torch.Generator, learning_rate: float = _LEARNING_RATE
) -> tuple[Float[Tensor, "heads k n"], Float[Tensor, "heads k n"]]:
    """E and F of each head, by Adam on the squared error of softmax(Q·(E·K)ᵀ/√d)·F·V relative to softmax(Q·Kᵀ/√d)·V.

    They start as mean pooling. Two texts are drawn for each step; the learning rate falls to 0 as a cosine.

    Args:
        heads: Attention of some heads on some texts, `[texts, heads, n, d]`.
        k: Slots.
        steps: Updates.
        generator: Draws the texts.
        learning_rate: The highest of the schedule.

    Returns:
        E and F, `[heads, k, n]`, in float32.
    """
    texts, count, n, _ = heads.query.shape
    start = window_means(k, n).float().expand(count, k, n)
    e, f = (start.clone().requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([e, f], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randperm(texts, generator=generator)[:_TEXTS_TOGETHER]
        some = Heads(*(states[chosen].float() for states in heads))
        with torch.no_grad():
            exact = some.mapping() @ some.value
        # Each head for itself: the error relative to its own output, summed over heads.
        squares = (some.projected(e, f) - exact).square().sum(dim=(0, 2, 3)) / exact.square().sum(dim=(0, 2, 3))
        optimizer.zero_grad()
        squares.sum().backward()
        optimizer.step()
        schedule.step()
    return e.detach(), f.detach()
