"""Masked language modelling over packed blocks, in nats.

The loss is the mean negative log-likelihood over all masked tokens; a mean of batch means would give more weight to
tokens of batches with fewer masked tokens. Perplexity is its exponential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate
from transformers import PreTrainedTokenizerBase

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.data.masking import MaskedBlocks, shuffled_blocks
from linformer_kit.models.heads import LinformerForMaskedLM, labelled_positions
from linformer_kit.training.tasks.base import Batch, Task

# The head runs on a multiple of this number of tokens. With another number in each update, logits of ever new sizes
# would leave gaps in the memory of the process, which would grow to several times what it uses.
_PREDICTED = 256


class MaskedLanguageModel(Task):
    """Predict the masked tokens of blocks.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        train: Masked blocks.
        validation: Masked blocks for validation.
        seq_len: Tokens in a block.
        seed: Seed of the order.
    """

    unit = "tokens"
    uses_every_parameter = True

    def __init__(
        self,
        model: LinformerForMaskedLM,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train: MaskedBlocks,
        validation: MaskedBlocks,
        seq_len: int,
        seed: int,
    ) -> None:
        super().__init__(model, tokenizer, train=train, validation=validation, collate=default_collate)  # type: ignore[arg-type]
        self.size = seq_len
        self._seed = seed

    def order(self, epoch: int, *, together: int, multiple: int) -> list[Any]:
        return shuffled_blocks(self.examples, seed=self._seed, epoch=epoch, multiple=multiple)

    def labels(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED_LABEL).sum()

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        """Mean negative log-likelihood of the masked tokens; the head runs on these and few others."""
        positions = _predicted_positions(batch["labels"])
        return self.model(**batch, predicted_positions=positions, num_items_in_batch=labels).loss

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sum of losses and number of masked tokens of each sequence; the head runs on masked tokens only.

        Sums over sequences, unlike means, add up exactly over batches and processes.
        """
        labels = batch["labels"]
        positions = labelled_positions(labels)
        logits = self.model(batch["input_ids"], predicted_positions=positions).logits
        losses = F.cross_entropy(logits.float(), labels.flatten()[positions], reduction="none")
        sums = torch.zeros(len(labels), device=losses.device).index_add(0, positions // labels.shape[1], losses)
        return sums, (labels != IGNORED_LABEL).sum(dim=1)

    def metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        return {"loss": float(sums.sum(dtype="float64") / counts.sum())}

    def describe(self, metrics: Mapping[str, float]) -> str:
        loss = metrics["loss"]
        return f"validation loss {loss:.3f} nats, perplexity {math.exp(min(loss, 700)):,.1f}"


def _predicted_positions(labels: Tensor) -> Tensor:
    """Indices of the labelled tokens in the flattened batch, then of some others up to a multiple of `_PREDICTED`."""
    ignored = (labels == IGNORED_LABEL).flatten()
    count = ignored.numel() - int(ignored.sum())
    return ignored.argsort(stable=True)[: -(-count // _PREDICTED) * _PREDICTED]
