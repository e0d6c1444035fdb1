"""Checks of `SequenceParallel`: whether a model can be split, and whether all processes have the same batch."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.embeddings import check_position_table
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.parallel.collectives import of_all

_MODELS = (
    LinformerModel,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)


def check_model(model: nn.Module, ranks: int) -> None:
    """Raise an error for a model that cannot be split over this number of processes."""
    if not isinstance(model, _MODELS):
        names = ", ".join(kind.__name__ for kind in _MODELS)
        raise InputError(f"model: expected one of {names}, got {type(model).__name__}")
    check_position_table(model)
    config: LinformerConfig = model.config
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    if config.attention == "full":
        raise InputError("attention: expected linformer, whose slots are sums over positions, got full")
    if config.global_tokens:
        raise InputError(f"global_tokens: expected 0 in sequence parallel, got {config.global_tokens}")
    for projection in projections:
        if projection.piece is not None:
            raise InputError("model: expected a whole one, got one that is split already")
        if not projection.supports_sequence_parallel:
            raise InputError(
                "projection: expected linear, mean_pool, random or dynamic, whose slots are sums over positions, "
                f"got {config.projection}"
            )
        if projection.stretches and projection.shorter_input == "stretch":
            raise InputError("shorter_input: expected prefix, where each position has its own column, got stretch")
    # Positions of a piece: convolutions and windows reach one piece further only.
    least = max(1, config.local_convolution // 2, config.sliding_window // 2)
    if config.max_position_embeddings < ranks * least:
        raise InputError(
            f"mesh: expected at most {config.max_position_embeddings // least} processes for a longest sequence of "
            f"{config.max_position_embeddings}, got {ranks}"
        )


def refuse_position_ids(position_ids: Tensor | None) -> None:
    """Raise an error for position_ids: positions follow from the mask, and decide which process has a token."""
    if position_ids is not None:
        raise InputError("position_ids: expected None, because they decide which process has a token, got a tensor")


def check_same_batch(batch: dict[str, Tensor], device: torch.device, group: dist.ProcessGroup) -> None:
    """Raise an error if processes have different batches; of float tensors other than the mask, only shapes count."""
    check = 0
    for name, tensor in sorted(batch.items()):
        check = zlib.crc32(f"{name} {tuple(tensor.shape)}".encode(), check)
        if name == "attention_mask" or not tensor.is_floating_point():
            content = tensor.double() if tensor.is_floating_point() else tensor  # numpy has no bfloat16
            check = zlib.crc32(content.cpu().numpy().tobytes(), check)
    everywhere = of_all(torch.tensor([check], device=device), group=group)
    if len(set(torch.cat(everywhere).tolist())) > 1:
        raise InputError("batch: expected the same on every process of the group, got different ones")
