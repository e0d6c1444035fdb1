"""Base class of tasks: a model, its batches, a loss, and metrics on held-out inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Batch = dict[str, Tensor]


class Task(nn.Module):
    """What `training.loop` trains.

    Args:
        model: The model to train.
        tokenizer: Saved with the model.
        train: Training items: a data set indexed by the keys of `order`.
        validation: Validation items, measured in this order.
        collate: Turns a list of items into a batch.
        seed: Seed of the order.

    Attributes:
        unit: Unit of speed: tokens or texts.
        uses_every_parameter: Whether each loss has a gradient for every parameter; if not, DistributedDataParallel
            searches for unused parameters in each update.
    """

    unit = "texts"
    uses_every_parameter = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train: Any,
        validation: Any,
        collate: Callable[[list[Any]], Mapping[str, Tensor]],
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.train_items = train
        self.validation_items = validation
        self.collate = collate
        self.seed = seed

    @property
    def size(self) -> int:
        """Number of units in a sequence."""
        return 1

    def order(self, epoch: int, *, global_batch_size: int, multiple: int) -> list[Any]:
        """Keys of the training items of an epoch, counted from 0, a pure function of the task's seed and the epoch.

        Args:
            epoch: Number of the epoch.
            global_batch_size: Sequences of one forward pass over all processes.
            multiple: The keys are padded to a multiple of this, with keys of items without labels.
        """
        raise NotImplementedError

    def begin(self, update: int | None) -> None:
        """Prepare for an update, by its number from 0, or with None for evaluation and saving."""

    def labels(self, batch: Batch) -> Tensor | None:
        """Number of labels in a batch; None: the loss is a mean over the batch, and not divided by a label count."""
        return None

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        """The loss of a batch: its sum of losses, divided by `labels` of the update over all processes."""
        raise NotImplementedError

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """Measure each sequence of a batch, for `metrics`: tensors of `[batch, ...]`."""
        raise NotImplementedError

    def metrics(self, *measured: np.ndarray) -> dict[str, float]:
        """Metrics from the measurements of all sequences, including `loss`."""
        raise NotImplementedError
