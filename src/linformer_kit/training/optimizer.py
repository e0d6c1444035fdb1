"""The optimizer of a training, and its model in several processes: replicated (DDP) or sharded (FSDP2)."""

from __future__ import annotations

import re
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers.modeling_layers import GradientCheckpointingLayer

from linformer_cli.errors import InputError
from linformer_cli.settings import TrainingSettings
from linformer_kit.models.base import projection_parameters
from linformer_kit.training.task import Task

# Names of parameters without weight decay, as in transformers.
_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
HIGHEST_RATE = "highest_lr"  # key of a group's peak learning rate


def distributed(task: Task, settings: TrainingSettings, process: PartialState) -> nn.Module:
    """The module whose call trains the task in all processes; the model is compiled and sharded in-place."""
    if getattr(settings, "activation_checkpointing", False):
        task.model.activation_checkpointing_enable({"use_reentrant": False})
    if settings.torch_compile:
        task.model.compile()
    if settings.fully_shard:
        shard(task.model, init_device_mesh(process.device.type, (process.num_processes,)))
    elif process.num_processes > 1:
        return DistributedDataParallel(
            task,
            device_ids=None if process.device.type == "cpu" else [process.device],
            broadcast_buffers=False,
            find_unused_parameters=not task.uses_every_parameter,
        )
    return task


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split parameters, gradients and moments over the processes, by torch's FSDP2: each keeps about 1/N of them.

    Each layer gathers its parameters before it runs and frees them afterwards. Embeddings, head and, with layerwise
    sharing, the shared E belong to the whole model and stay gathered from its forward to its backward pass.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(f"fully_shard: expected a model with layers of transformers, got {type(model).__name__}")
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)


def adamw(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW for a model, sharded or not: weight decay for all but biases and norms; E and F may have their own rate."""
    rate, decay = settings.learning_rate, settings.weight_decay
    own_rate = rate * getattr(settings, "projection_learning_rate_factor", 1.0)
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
