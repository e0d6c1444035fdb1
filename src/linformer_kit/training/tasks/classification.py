"""Text classification, with a model of any architecture: one loss, batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.data.inputs import LabelledItems, grouped_by_length
from linformer_kit.inference.scores import answers_of, losses, scores
from linformer_kit.training.tasks.base import Batch, Task


def classification_loss(
    logits: Float[Tensor, "batch classes"],
    labels: Num[Tensor, " batch"] | Float[Tensor, "batch classes"],
    *,
    class_weights: Float[Tensor, " classes"] | Float[Tensor, "2 classes"] | None = None,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Mean cross entropy over texts, or over texts and classes for multi-label classification.

    Args:
        logits: The model's logits.
        labels: Class indices, or 0 and 1 for each class (multi-label); -100 is ignored.
        class_weights: Weight of each class; for multi-label, of the negatives and the positives of each class.
        label_smoothing: Fraction of each target that is spread evenly over all classes.
        num_items_in_batch: Labels in all forward passes of one update, so that accumulated gradients are those of the
            large batch; default: those of this batch.
    """
    logits = logits.float()
    weights = None if class_weights is None else class_weights.to(logits.device)
    if labels.dim() == 2:
        yes = labels.to(logits.dtype)
        targets = yes * (1 - label_smoothing) + label_smoothing / 2
        each = (yes != IGNORED_LABEL).to(logits.dtype)
        if weights is not None:
            each = each * torch.where(yes == 1, weights[1], weights[0])
        total = F.binary_cross_entropy_with_logits(logits, targets, each, reduction="sum")
    else:
        total = F.cross_entropy(logits, labels, weights, label_smoothing=label_smoothing, reduction="sum")
    count = (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=logits.device)


def balanced_weights(
    labels: Num[Tensor, " texts"] | Float[Tensor, "texts classes"], classes: int
) -> Float[Tensor, " classes"] | Float[Tensor, "2 classes"]:
    """Weights that give all classes the same total, as `class_weight="balanced"` of scikit-learn.

    Args:
        labels: Class indices, or 0 and 1 for each class (multi-label).
        classes: Number of classes.

    Returns:
        texts / (classes · texts of the class); for multi-label, of the texts without the class, and of those with it.
    """
    if labels.dim() == 2:
        yes = labels.sum(dim=0)
        counts = torch.stack([len(labels) - yes, yes])
    else:
        counts = torch.bincount(labels, minlength=classes)
    return len(labels) / (counts.clamp(min=1) * (2 if labels.dim() == 2 else classes)).float()


class Classification(Task):
    """Classify texts, with a model of any architecture.

    Args:
        model: A model that returns `logits`, `[batch, classes]`.
        tokenizer: Pads batches.
        train: Training inputs with their labels.
        validation: Validation inputs with their labels, measured in this order.
        texts_in_update: Texts in an update over all processes; they have similar lengths.
        seed: Seed of the order.
        metrics: Names of metrics of `scores`.
        class_weights: As for `classification_loss`.
        label_smoothing: As for `classification_loss`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train: LabelledItems,
        validation: LabelledItems,
        texts_in_update: int,
        seed: int,
        metrics: Sequence[str],
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        collate = DataCollatorWithPadding(tokenizer)
        super().__init__(model, tokenizer, train=train, validation=validation, collate=collate)  # type: ignore[arg-type]
        self._lengths = train.lengths
        self._texts_in_update = texts_in_update
        self._seed = seed
        self._metrics = metrics
        self._class_weights = class_weights
        self._label_smoothing = label_smoothing

    def order(self, epoch: int, *, together: int, multiple: int) -> list[Any]:
        return grouped_by_length(
            self._lengths, batch_size=self._texts_in_update, seed=self._seed, epoch=epoch, multiple=multiple
        )

    def labels(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED_LABEL).sum()

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        inputs = dict(batch)
        targets = inputs.pop("labels")
        return classification_loss(
            self.model(**inputs).logits,
            targets,
            class_weights=self._class_weights,
            label_smoothing=self._label_smoothing,
            num_items_in_batch=labels,
        )

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels."""
        inputs = dict(batch)
        targets = inputs.pop("labels")
        return self.model(**inputs).logits, targets

    def metrics(self, logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        answers = answers_of(logits, multi_label=targets.ndim == 2)
        # Without the class weights and label smoothing of the training loss.
        loss = float(losses(logits, targets).mean())
        return {**scores(answers, targets, self._metrics, logits.shape[1]), "loss": loss}

    def describe(self, metrics: Mapping[str, float]) -> str:
        shown = ", ".join(f"{name} {metrics[name]:.3f}" for name in self._metrics)
        return f"validation {shown}, loss {metrics['loss']:.3f}"


def curves(history: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, list[list[float]]]:
    """Pairs of update and value for the training loss, the validation loss and each validation metric."""
    named = {"training loss": "loss", "validation loss": "eval_loss", **{name: f"eval_{name}" for name in metrics}}
    return {
        name: [[entry["step"], entry[logged]] for entry in history if logged in entry] for name, logged in named.items()
    }
