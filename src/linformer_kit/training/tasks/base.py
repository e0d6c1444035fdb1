"""A task: a model, batches for it, a loss, and what is measured on held-out inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Batch = dict[str, Tensor]


class Task(nn.Module):
    """What `training.loop` trains.

    Args:
        model: The model to train.
        tokenizer: Saved with it.
        train: To learn from: a data set indexed by the keys of `order`, or a stream that is read in its own order.
        validation: To measure on, in this order.
        collate: A list of items to a batch.

    Attributes:
        unit: What speed is counted in: tokens, or texts.
        size: How many of these a sequence counts.
        uses_every_parameter: Whether each loss has a gradient for every parameter; else processes look for those
            without one at each update.
    """

    unit = "texts"
    size = 1
    uses_every_parameter = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train: Dataset | IterableDataset,
        validation: Sequence[Any],
        collate: Callable[[list[Any]], Mapping[str, Tensor]],
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.train_items = train
        self.validation_items = validation
        self.collate = collate

    def order(self, epoch: int, *, together: int, multiple: int) -> list[Any]:
        """Keys of the training items of an epoch, a pure function of the task's seed and the epoch.

        Args:
            epoch: How often all items were seen before.
            together: Sequences of a forward pass of all processes.
            multiple: The keys are filled up to a multiple of this, with keys of items without labels.
        """
        raise NotImplementedError

    @property
    def examples(self) -> int:
        """Sequences in an epoch, without those that only fill up a last batch."""
        return len(self.train_items)  # type: ignore[arg-type]

    def begin(self, update: int | None) -> None:
        """Prepare for an update, by its number from 0, or, with None, for evaluation and use."""

    def labels(self, batch: Batch) -> Tensor | None:
        """Number of labels that the loss of a batch is a sum over; None: the loss is a mean of its own."""
        return None

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        """The loss of a batch.

        Args:
            batch: What `collate` made, on the model's device.
            labels: Labels in all batches of the update, in all processes; the sum over the batch is divided by it.
        """
        raise NotImplementedError

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `metrics` needs to know of each sequence of a batch: tensors of `[batch, ...]`."""
        raise NotImplementedError

    def metrics(self, *measured: np.ndarray) -> dict[str, float]:
        """Metrics of all that was measured, among them `loss`."""
        raise NotImplementedError

    def describe(self, metrics: Mapping[str, float]) -> str:
        """Metrics in words, for people who watch."""
        raise NotImplementedError
