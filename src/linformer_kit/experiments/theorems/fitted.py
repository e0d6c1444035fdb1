"""E and F fitted to attention that is there: what projections that know the data could give.

Axes: texts, heads, n (positions), d (head_dim), k (slots).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from linformer_kit.experiments.theorems.statements import Heads, window_means

_LEARNING_RATE = 1e-3  # with more, real attention overshoots: its keys have a large mean, which row sums of E multiply
_TEXTS_TOGETHER = 2
_HELD_OUT = 8  # every so many-th text decides which update of a head is kept
_STEPS_BETWEEN = 25


def fit_projections(
    heads: Heads, k: int, *, steps: int, generator: torch.Generator, learning_rate: float = _LEARNING_RATE
) -> tuple[Float[Tensor, "heads k n"], Float[Tensor, "heads k n"]]:
    """E and F of each head, by Adam on the squared error of softmax(Q·(E·K)ᵀ/√d)·F·V relative to softmax(Q·Kᵀ/√d)·V.

    They start as mean pooling. Two texts are drawn for each step; the learning rate falls to 0 as a cosine. An eighth
    of the texts is held out, and each head keeps what was best on these, its start included.

    Args:
        heads: Attention of some heads on some texts, 2 or more, `[texts, heads, n, d]`.
        k: Slots.
        steps: Updates.
        generator: Draws the texts.
        learning_rate: The highest of the schedule.

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
    """Squared error of each head over its own output's square: heads do not weigh by the size of their values."""
    with torch.no_grad():
        exact = heads.mapping() @ heads.value
    squares = (heads.projected(e, f) - exact).square().sum(dim=(0, 2, 3))
    return squares / exact.square().sum(dim=(0, 2, 3)).clamp(min=torch.finfo(exact.dtype).tiny)
