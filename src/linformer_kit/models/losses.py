"""Losses of the heads: sums over the labels of a batch, divided by the number of labels of the whole update.

Axes: batch, seq_len (n), labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from linformer_cli.errors import InputError
from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.models.inputs import check_ids, check_integers


def token_loss(
    logits: Float[Tensor, "*tokens labels"],
    labels: Int[Tensor, "*tokens"],
    num_items_in_batch: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of tokens; -100 marks tokens without a label."""
    check_integers("labels", labels, logits.shape[:-1])
    check_ids("labels", labels, logits.shape[-1], ignored=IGNORED_LABEL)
    losses = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten().long(), reduction="none")
    return _mean(losses, (labels != IGNORED_LABEL).sum(), num_items_in_batch)


def problem_of(labels: Tensor, num_labels: int) -> str:
    """The `problem_type` inferred from the labels where the configuration has none, as in transformers."""
    if num_labels == 1:
        return "regression"
    return "single_label_classification" if labels.dtype in (torch.long, torch.int) else "multi_label_classification"


def label_loss(
    problem: str,
    logits: Float[Tensor, "batch labels"],
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Loss of whole sequences: cross-entropy, squared error, or binary cross-entropy of each label.

    Args:
        problem: `problem_type`.
        logits: Logits of each sequence.
        labels: Class ids `[batch]`, or targets of the shape of logits (`[batch]` for one regression output).
        num_items_in_batch: Labels in all forward passes of one update; default: those of this batch.
    """
    classes = problem == "single_label_classification"
    num_labels = logits.shape[1]
    expected = logits.shape[:1] if classes or (num_labels == 1 and labels.dim() == 1) else logits.shape
    if labels.shape != expected:
        raise InputError(f"labels: expected {list(expected)}, got {list(labels.shape)}")
    if classes:
        return token_loss(logits, labels, num_items_in_batch)
    logits = logits.float()
    targets = labels.to(logits.dtype).view_as(logits)
    loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    count = torch.tensor(targets.numel(), device=targets.device)
    return _mean(loss(logits, targets, reduction="none"), count, num_items_in_batch)


def position_loss(
    name: str,
    logits: Float[Tensor, "batch seq_len"],
    positions: Tensor,
    num_items_in_batch: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy over positions; positions outside the sequence are ignored."""
    if positions.dim() == 2 and positions.shape[1] == 1:
        positions = positions[:, 0]
    check_integers(name, positions, logits.shape[:1])
    inside = (positions >= 0) & (positions < logits.shape[1])
    return token_loss(logits, positions.masked_fill(~inside, IGNORED_LABEL), num_items_in_batch)


def _mean(losses: Tensor, count: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Sum over the items of this forward pass, divided by the number of items in the whole update."""
    total = torch.as_tensor(count if num_items_in_batch is None else num_items_in_batch, device=losses.device)
    return losses.sum() / total.clamp(min=1)
