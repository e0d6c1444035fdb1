"""Training of masked language models: repeatable order, exact validation loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EvalPrediction, TrainingArguments

from linformer_kit.data.masking import EpochSampler
from linformer_kit.models.heads import labelled_positions
from linformer_kit.settings import PretrainSettings
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.callbacks import ElasticProjectedDim, ProgressBar
from linformer_kit.training.metrics import masked_token_losses
from linformer_kit.training.trainer import ProjectionTrainer, check_trainer

# Fields of TrainingArguments that pretraining decides.
PRETRAINING = {"eval_strategy": "steps", "save_strategy": "steps", "eval_on_start": True}


class PretrainTrainer(ProjectionTrainer):
    """Trainer for masked language models over packed blocks.

    Args:
        model: A `LinformerForMaskedLM`.
        args: As for Trainer.
        seq_len: Tokens in a block, for tokens per second.
        elastic_projected_dims: Numbers of slots of which each update draws one; None: always all.
        others: As for `ProjectionTrainer`; data sets are `MaskedBlocks` or, to learn from, a stream of masked blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        seq_len: int,
        elastic_projected_dims: list[int] | None = None,
        **others: Any,
    ) -> None:
        tokens = args.train_batch_size * args.gradient_accumulation_steps * args.world_size * seq_len
        progress = ProgressBar(each=tokens, what="tokens", describe=_described)
        super().__init__(model, args, progress=progress, compute_metrics=_mean_token_loss, **others)
        if elastic_projected_dims:
            self.add_callback(ElasticProjectedDim(elastic_projected_dims, seed=self.args.seed))

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler | None:
        """Order and epoch come from one sampler, so both reach worker processes and survive a resume."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return EpochSampler(len(dataset), seed=self.args.seed, multiple=self.sequences_together)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **named: Any) -> Any:
        """As of Trainer; the head runs on the masked tokens only."""
        predicted = {"predicted_positions": labelled_positions(inputs["labels"])}
        return super().compute_loss(model, inputs | predicted, *args, **named)

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

    Raises:
        InputError: for whatever is refused.
    """
    check_trainer(lambda folder: training_arguments(settings, folder, PRETRAINING), settings.max_steps)


def _described(metrics: dict[str, float]) -> str:
    loss = metrics["eval_loss"]
    return f"validation loss {loss:.3f} nats, perplexity {math.exp(min(loss, 700)):,.1f}"


def _mean_token_loss(prediction: EvalPrediction) -> dict[str, float]:
    sums, counts = prediction.predictions
    return {"mean_token_loss": float(sums.sum(dtype="float64") / counts.sum())}
