"""transformers' Trainer with what pretraining needs: repeatable order, exact validation loss, its own progress bar."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EvalPrediction, PrinterCallback, ProgressCallback, Trainer, TrainingArguments

from linformer_kit.configuration import LinformerConfig
from linformer_kit.data.masking import EpochSampler, MaskedBlocks
from linformer_kit.errors import input_errors
from linformer_kit.heads import LinformerForMaskedLM
from linformer_kit.projection import SequenceProjection
from linformer_kit.settings import PretrainSettings
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.callbacks import ArgumentIntervals, ElasticProjectedDim, ProgressBar
from linformer_kit.training.metrics import masked_token_losses


class PretrainTrainer(Trainer):
    """Trainer for masked language models over packed blocks.

    Args:
        model: A `LinformerForMaskedLM`.
        args: As for Trainer.
        train_dataset: `MaskedBlocks`, or a stream of masked blocks.
        eval_dataset: `MaskedBlocks`, masked the same at each evaluation.
        processing_class: The tokenizer, saved in each checkpoint.
        seq_len: Tokens in a block, for tokens per second.
        projection_learning_rate_factor: Learning rate of E and F, as a multiple of that of all else.
        projection_weight_decay: Weight decay of E and F; None: that of all else.
        elastic_projected_dims: Numbers of slots of which each update draws one; None: always all.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        train_dataset: MaskedBlocks | torch.utils.data.IterableDataset,
        eval_dataset: MaskedBlocks,
        processing_class: Any,
        seq_len: int,
        projection_learning_rate_factor: float = 1.0,
        projection_weight_decay: float | None = None,
        elastic_projected_dims: list[int] | None = None,
    ) -> None:
        decay = args.weight_decay if projection_weight_decay is None else projection_weight_decay
        self._of_projections = {"lr": args.learning_rate * projection_learning_rate_factor, "weight_decay": decay}
        super().__init__(
            model,
            args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=_mean_token_loss,
        )
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        tokens = self.args.train_batch_size * args.gradient_accumulation_steps * args.world_size * seq_len
        self.progress = ProgressBar(tokens_per_update=tokens)
        self.add_callback(self.progress)
        self.add_callback(ArgumentIntervals)
        if elastic_projected_dims:
            self.add_callback(ElasticProjectedDim(elastic_projected_dims, seed=self.args.seed))

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

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler | None:
        """Order and epoch come from one sampler, so both reach worker processes and survive a resume."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return EpochSampler(len(dataset), seed=self.args.seed)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Loss sums and token counts of each sequence instead of logits over the vocabulary."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            sums, counts = masked_token_losses(
                self.accelerator.unwrap_model(model), inputs["input_ids"], inputs["labels"]
            )
        return sums.sum() / counts.sum().clamp(min=1), (sums, counts), counts

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The library's loop, whose loss is a mean of batch means, with the mean over all tokens in its place."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics[f"{metric_key_prefix}_loss"] = output.metrics.pop(f"{metric_key_prefix}_mean_token_loss")
        return output


def check_training(settings: PretrainSettings) -> None:
    """Refuse settings that no trainer can be made of, before anything is read, written or removed.

    transformers looks at many of its arguments only when it builds the trainer, the optimizer and the schedule, so they
    are built, for the smallest model that there is.

    Raises:
        InputError: for whatever is refused.
    """
    sizes = ("vocab_size", "max_position_embeddings", "projected_dim", "hidden_size", "intermediate_size")
    fields: dict[str, Any] = dict.fromkeys((*sizes, "num_hidden_layers", "num_attention_heads"), 1)
    fields |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    model = LinformerForMaskedLM(LinformerConfig(**fields))
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(settings, Path(folder))
        with input_errors("trainer"):
            trainer = Trainer(model, arguments, eval_dataset={}, compute_metrics=_mean_token_loss)
            trainer.create_optimizer_and_scheduler(num_training_steps=settings.max_steps)


def _mean_token_loss(prediction: EvalPrediction) -> dict[str, float]:
    sums, counts = prediction.predictions
    return {"mean_token_loss": float(sums.sum(dtype="float64") / counts.sum())}
