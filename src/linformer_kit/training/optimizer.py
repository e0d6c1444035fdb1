"""AdamW's parameter groups, and learning rate schedules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.settings import TrainingSettings

# Names of parameters without weight decay, as in transformers.
_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
_HIGHEST = "highest_lr"  # key of a group's peak learning rate


def adamw(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW for a model: weight decay for all but biases and norms; E and F may have their own rate.

    Args:
        model: The model; shard it first, if it is to be sharded.
        settings: Learning rates, decays, betas and epsilon.
    """
    rate, decay = settings.learning_rate, settings.weight_decay
    own_rate = rate * settings.projection_learning_rate_factor
    apart = {id(matrix) for matrix in projection_parameters(model)} if own_rate != rate else set()
    undecayed = {
        f"{name}.{inner}" if name else inner
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for inner, _ in module.named_parameters(recurse=False)
    }
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": rate, "weight_decay": decay},
        {"params": [], "lr": rate, "weight_decay": 0.0},
        {"params": [], "lr": own_rate, "weight_decay": decay},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = name not in undecayed and not _WITHOUT_DECAY.search(name)
            groups[2 if decays and id(parameter) in apart else 0 if decays else 1]["params"].append(parameter)
    groups = [group | {_HIGHEST: group["lr"]} for group in groups if group["params"]]
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    return torch.optim.AdamW(
        groups,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=not sharded,
        foreach=sharded,
    )


def projection_parameters(model: nn.Module) -> list[nn.Parameter]:
    """E and F, W_P, and kernels of convolutions: the parameters of all projections."""
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    return [matrix for module in projections for matrix in module.parameters()]


def set_learning_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Set each group's learning rate to a fraction of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group[_HIGHEST] * share


def learning_rate_schedule(kind: str, *, updates: int, warmup_steps: float) -> Callable[[int], float]:
    """The schedule: maps the number of an update, from 0, to its learning rate as a fraction of the peak.

    Args:
        kind: Decay after the warm-up: `linear` or `cosine` to 0, or `constant`.
        updates: Total number of updates.
        warmup_steps: Updates of linear warm-up; a value below 1 is a fraction of all updates.
    """
    warmup = int(warmup_steps) if warmup_steps >= 1 else math.ceil(updates * warmup_steps)

    def share(update: int) -> float:
        if update < warmup:
            return update / max(1, warmup)
        done = (update - warmup) / max(1, updates - warmup)
        if kind == "cosine":
            return max(0.0, 0.5 * (1 + math.cos(math.pi * done)))
        return 1.0 if kind == "constant" else max(0.0, 1 - done)

    return share
