"""transformers' Trainer with what all our trainings need."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments
from transformers.trainer_utils import has_length

from linformer_kit.errors import input_errors
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.training.callbacks import ArgumentIntervals, ProgressBar
from linformer_kit.training.upstream import ExactTrainer


class ProjectionTrainer(ExactTrainer):
    """`ExactTrainer` with our progress bar, and E and F in a group of their own where they have settings of their own.

    Args:
        model: The model.
        args: As for Trainer.
        progress: The bar.
        projection_learning_rate_factor: Learning rate of E and F, as a multiple of that of all else.
        projection_weight_decay: Weight decay of E and F; None: that of all else.
        others: As for `ExactTrainer`.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        progress: ProgressBar,
        projection_learning_rate_factor: float = 1.0,
        projection_weight_decay: float | None = None,
        **others: Any,
    ) -> None:
        decay = args.weight_decay if projection_weight_decay is None else projection_weight_decay
        self._of_projections = {"lr": args.learning_rate * projection_learning_rate_factor, "weight_decay": decay}
        super().__init__(model, args, **others)
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.progress = progress
        self.add_callback(progress)
        self.add_callback(ArgumentIntervals)

    @property
    def sequences_together(self) -> int:
        """Sequences of a forward pass in all processes: accelerate would repeat some to make the last ones equal."""
        return self.args.train_batch_size * self.args.world_size if self.args.world_size > 1 else 1

    @property
    def sequences_of_an_update(self) -> int:
        """Of all forward passes of an update in all processes, with whole batches."""
        return self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    @property
    def sequences_of_an_epoch(self) -> int | None:
        """What there is to learn from, without what makes processes equal; None for a stream of unknown length."""
        if not has_length(self.train_dataset):
            return None
        left_out = self.args.dataloader_drop_last and self.args.world_size == 1
        return len(self.train_dataset) - (len(self.train_dataset) % self.args.train_batch_size if left_out else 0)

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:
        """As of `ExactTrainer`; the bar ends with it, however that is."""
        sequences = self.sequences_of_an_epoch
        each = self.progress.each // self.sequences_of_an_update
        self.progress.in_epoch = None if sequences is None else sequences * each
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **named)
        finally:
            self.progress.close()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The library's line of loss, length of the gradient and learning rate, with speed, time left and memory."""
        if "loss" in logs:
            logs |= self.progress.measures(self.state, self.args.device)
        super().log(logs, start_time)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The library's optimizer, with E and F in a group of their own where they have settings of their own."""
        made = self.optimizer is not None
        optimizer = super().create_optimizer(model)
        decayed = optimizer.param_groups[0]
        if not made and any(decayed[name] != value for name, value in self._of_projections.items()):
            modules = (self.model if model is None else model).modules()
            projections = [module for module in modules if isinstance(module, SequenceProjection)]
            matrices = {id(matrix): matrix for module in projections for matrix in module.parameters()}
            decayed["params"] = [each for each in decayed["params"] if id(each) not in matrices]
            if matrices:
                optimizer.add_param_group({**decayed, **self._of_projections, "params": list(matrices.values())})
        return optimizer


def check_trainer(arguments: Callable[[Path], TrainingArguments], updates: int) -> None:
    """Refuse arguments that no trainer can be made of, before anything is read, written or removed.

    transformers looks at many of its arguments only when it builds the trainer, the optimizer and the schedule, so they
    are built, for the smallest model that there is.

    Args:
        arguments: Makes them for a folder.
        updates: How many there will be.

    Raises:
        InputError: for whatever is refused.
    """
    sizes = ("vocab_size", "max_position_embeddings", "projected_dim", "hidden_size", "intermediate_size")
    fields: dict[str, Any] = dict.fromkeys((*sizes, "num_hidden_layers", "num_attention_heads"), 1)
    fields |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    model = LinformerForMaskedLM(LinformerConfig(**fields))
    with tempfile.TemporaryDirectory() as folder:
        made = arguments(Path(folder))
        with input_errors("trainer"):
            trainer = Trainer(model, made, eval_dataset={}, compute_metrics=lambda _: {})
            trainer.create_optimizer_and_scheduler(num_training_steps=updates)
