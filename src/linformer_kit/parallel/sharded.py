"""Sharded models: parameters, gradients and optimizer state are split over the processes, by torch's FSDP2."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from linformer_cli.errors import InputError


def shard(model: nn.Module, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None) -> None:
    """Shard the parameters of a model over the processes, in-place: each keeps about 1/N of every parameter.

    Each layer gathers its parameters before it runs and frees them afterwards. Embeddings, head and, with layerwise
    sharing, the shared E belong to the whole model and stay gathered from its forward to its backward pass.

    Args:
        model: A model of this package or of transformers. Its parameters are replaced, so create the optimizer
            afterwards.
        mesh: The processes: one dimension, or two named dimensions (replicas, shards).
        compute_dtype: Number format of forward and backward (such as bfloat16); parameters, optimizer and sums of
            gradients keep that of the parameters. None: the parameters' format everywhere.

    Raises:
        InputError: for a model without layers of transformers, a sharded model, and an unsupported mesh.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(f"model: expected one with layers of transformers, got {type(model).__name__} without")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise InputError("model: expected one that is not sharded, got a sharded one")
    if mesh.ndim > 2 or (mesh.ndim == 2 and mesh.mesh_dim_names is None):
        raise InputError(f"mesh: expected one dimension, or two with mesh_dim_names, got {mesh}")
    reduced = None if compute_dtype is None else next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduced)
    parts: list[nn.Module] = [*layers, model]
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)
