"""Text classification, with a model of any architecture: one loss, batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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
    count: Tensor | int,
) -> Float[Tensor, ""]:
    """Sum of the cross entropies of texts, or of texts and classes for multi-label classification, by `count`.

    Args:
        logits: The model's logits.
        labels: Class indices, or 0 and 1 for each class (multi-label); -100 is ignored.
        count: Labels in all forward passes of one update, so that accumulated gradients are those of the large batch.
    """
    logits = logits.float()
    if labels.dim() == 2:
        counted = (labels != IGNORED_LABEL).to(logits.dtype)
        total = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), counted, reduction="sum")
    else:
        total = F.cross_entropy(logits, labels, reduction="sum")
    return total / count


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
    ) -> None:
        collate = DataCollatorWithPadding(tokenizer)
        super().__init__(model, tokenizer, train=train, validation=validation, collate=collate)  # type: ignore[arg-type]
        self._lengths = train.lengths
        self._texts_in_update = texts_in_update
        self._seed = seed
        self._metrics = metrics

    def order(self, epoch: int, *, together: int, multiple: int) -> list[Any]:
        return grouped_by_length(
            self._lengths, batch_size=self._texts_in_update, seed=self._seed, epoch=epoch, multiple=multiple
        )

    def labels(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED_LABEL).sum()

    def forward(self, batch: Batch, labels: Tensor) -> Tensor:  # type: ignore[override]
        return classification_loss(*self.measure(batch), labels)

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels."""
        inputs = dict(batch)
        targets = inputs.pop("labels")
        return self.model(**inputs).logits, targets

    def metrics(self, logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        answers = answers_of(logits, multi_label=targets.ndim == 2)
        values = scores(answers, targets, self._metrics, logits.shape[1])
        return {**values, "loss": float(losses(logits, targets).mean())}

    def describe(self, metrics: Mapping[str, float]) -> str:
        shown = ", ".join(f"{name} {metrics[name]:.3f}" for name in self._metrics)
        return f"validation {shown}, loss {metrics['loss']:.3f}"


def curves(history: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, list[list[float]]]:
    """Pairs of update and value for the training loss, the validation loss and each validation metric."""
    named = {"training loss": "loss", "validation loss": "eval_loss", **{name: f"eval_{name}" for name in metrics}}
    return {
        name: [[entry["step"], entry[logged]] for entry in history if logged in entry] for name, logged in named.items()
    }
