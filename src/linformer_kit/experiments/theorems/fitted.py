"""E and F fitted to given attention: the errors that projections adapted to the data can reach.

Axes: texts, heads, n (positions), d (head_dim), k (slots).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from linformer_kit.experiments.theorems.statements import Heads, window_means

_LEARNING_RATE = 1e-3  # higher rates overshoot on real attention: row sums of E multiply the large mean of its keys
_TEXTS_TOGETHER = 2
_HELD_OUT = 8  # every 8th text is held out to select the best update of each head
_STEPS_BETWEEN = 25


def fit_projections(
    heads: Heads, k: int, *, steps: int, generator: torch.Generator, learning_rate: float = _LEARNING_RATE
) -> tuple[Float[Tensor, "heads k n"], Float[Tensor, "heads k n"]]:
    """Fit E and F of each head by Adam on the relative squared error of softmax(Q·(E·K)ᵀ/√d)·F·V (equation 7).

    The target is softmax(Q·Kᵀ/√d)·V. E and F start as mean pooling. Two texts are drawn for each step; the learning
    rate follows a cosine to 0. An eighth of the texts is held out; each head keeps the best on these, or its start.

    Args:
        heads: Attention of some heads on some texts, 2 or more, `[texts, heads, n, d]`.
        k: Number of slots.
        steps: Number of updates.
        generator: Random generator that draws the texts.
        learning_rate: Highest learning rate of the schedule.

    Returns:
        E and F, `[heads, k, n]`, in float32.
    """
    texts, count, n, _ = heads.query.shape
    held_out = torch.arange(texts) % _HELD_OUT == _HELD_OUT - 1 if texts >= _HELD_OUT else torch.arange(texts) == 0
    judged, learnt = (Heads(*(states[chosen].float() for states in heads)) for chosen in (held_out, ~held_out))
    start = window_means(k, n).float().expand(count, k, n)
    e, f = (start.clone().requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([e, f], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    kept, least = [e.detach().clone(), f.detach().clone()], _errors(judged, e, f).detach()
    for step in range(1, steps + 1):
        chosen = torch.randperm(len(learnt.query), generator=generator)[:_TEXTS_TOGETHER]
        optimizer.zero_grad()
        _errors(Heads(*(states[chosen] for states in learnt)), e, f).sum().backward()
        optimizer.step()
        schedule.step()
        if step % _STEPS_BETWEEN == 0 or step == steps:
            error = _errors(judged, e, f).detach()
            better = error < least
            for best, now in zip(kept, (e, f), strict=True):
                best[better] = now.detach()[better]
            least = torch.minimum(error, least)
    return kept[0], kept[1]


def _errors(heads: Heads, e: Tensor, f: Tensor) -> Float[Tensor, " heads"]:
    """Squared error of each head relative to its squared output, so that the scale of values does not matter."""
    with torch.no_grad():
        exact = heads.mapping() @ heads.value
    squares = (heads.projected(e, f) - exact).square().sum(dim=(0, 2, 3))
    return squares / exact.square().sum(dim=(0, 2, 3)).clamp(min=torch.finfo(exact.dtype).tiny)
