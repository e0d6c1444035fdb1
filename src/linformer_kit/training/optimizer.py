"""AdamW, with the groups of parameters of transformers and one for E and F."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from linformer_cli.settings import TrainingSettings
from linformer_kit.operator.projections import SequenceProjection

# Names of parameters without weight decay, as in transformers.
_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
HIGHEST_RATE = "highest_lr"  # key of a group's peak learning rate


def adamw(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW for a model, sharded or not: weight decay for all but biases and norms; E and F may have their own rate."""
    rate, decay = settings.learning_rate, settings.weight_decay
    own_rate = rate * settings.projection_learning_rate_factor
    apart = {id(matrix) for matrix in projection_parameters(model)} if own_rate != rate else set()
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    undecayed = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": rate, "weight_decay": decay},
        {"params": [], "lr": rate, "weight_decay": 0.0},
        {"params": [], "lr": own_rate, "weight_decay": decay},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = id(parameter) not in undecayed and not _WITHOUT_DECAY.search(name)
            groups[2 if decays and id(parameter) in apart else 0 if decays else 1]["params"].append(parameter)
    groups = [group | {HIGHEST_RATE: group["lr"]} for group in groups if group["params"]]
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    betas = settings.adam_beta1, settings.adam_beta2
    return torch.optim.AdamW(groups, betas=betas, eps=settings.adam_epsilon, fused=not sharded, foreach=sharded)


def projection_parameters(model: nn.Module) -> list[nn.Parameter]:
    """E and F, W_P, and kernels of convolutions: the parameters of all projections."""
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    return [matrix for module in projections for matrix in module.parameters()]
