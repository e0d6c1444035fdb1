"""Training of classifiers: one loss for every model, batches of texts of like length, metrics on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from linformer_kit.data.inputs import Item, LabelledItems
from linformer_kit.data.masking import FILLER
from linformer_kit.inference.scores import class_probabilities, losses, predicted, scores
from linformer_kit.settings import IGNORED_LABEL
from linformer_kit.training.callbacks import ProgressBar
from linformer_kit.training.trainer import ProjectionTrainer

_BATCHES_TOGETHER = 50  # whose texts are sorted by length, as in transformers


def classification_loss(
    logits: Float[Tensor, "batch classes"],
    labels: Num[Tensor, " batch"] | Float[Tensor, "batch classes"],
    *,
    class_weights: Float[Tensor, " classes"] | Float[Tensor, "2 classes"] | None = None,
    label_smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Mean cross entropy over texts, or over texts and classes where a text may have several.

    Args:
        logits: Of any model.
        labels: Numbers of the classes, or 0 and 1 for each class; -100 has no part in it.
        class_weights: What a text of each class counts; where a text may have several, its no and its yes.
        label_smoothing: Share of each target that all classes have alike.
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
    return total / (count.to(logits.device) if isinstance(count, Tensor) else count)


def balanced_weights(
    labels: Num[Tensor, " texts"] | Float[Tensor, "texts classes"], classes: int
) -> Float[Tensor, " classes"] | Float[Tensor, "2 classes"]:
    """What makes all classes count alike, as `class_weight="balanced"` of scikit-learn.

    Args:
        labels: Numbers of the classes, or 0 and 1 for each class.
        classes: How many there are.

    Returns:
        texts / (classes · texts of the class); where a text may have several, texts / (2 · texts) without the class
        and with it.
    """
    if labels.dim() == 2:
        yes = labels.sum(dim=0)
        return len(labels) / (2 * torch.stack([len(labels) - yes, yes]).clamp(min=1))
    counts = torch.bincount(labels, minlength=classes)
    return len(labels) / (classes * counts.clamp(min=1)).float()


class LengthGroupedSampler(Sampler):
    """Random order in which texts of like length stand together: a function of seed and epoch alone.

    So all processes have the same one, and a run that is resumed within an epoch goes on in it; transformers' own
    draws from the global generator, which has gone on by then. The longest text of all stands first: memory runs out
    at once or never.

    Args:
        lengths: Of the texts.
        batch_size: Texts in an update.
        seed: Seed of all orders.
        multiple: As for `EpochSampler`.
    """

    def __init__(
        self, lengths: Sequence[int] | Int[np.ndarray, " texts"], *, batch_size: int, seed: int, multiple: int = 1
    ) -> None:
        self._lengths = np.asarray(lengths)
        self._filled = -len(lengths) % multiple
        self._pool = batch_size * _BATCHES_TOGETHER
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths) + self._filled

    def __iter__(self) -> Iterator[int | None]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._lengths))
        longest = int(self._lengths[order].argmax())
        order[[0, longest]] = order[[longest, 0]]
        pools = [order[start : start + self._pool] for start in range(0, len(order), self._pool)]
        pools = [pool[np.argsort(-self._lengths[pool], kind="stable")] for pool in pools]
        return iter((*map(int, np.concatenate(pools)), *[FILLER] * self._filled))


class FilledTexts(Dataset):
    """Items, and under the index `FILLER` one without a label, which has no part in the loss."""

    def __init__(self, items: LabelledItems) -> None:
        self.items = items
        shortest = items[items.lengths.argmin()]
        labels = shortest["labels"]
        ignored = [float(IGNORED_LABEL)] * len(labels) if isinstance(labels, Sequence) else IGNORED_LABEL
        self._filler = {**shortest, "labels": ignored}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int | None) -> Item:
        return self._filler if index is FILLER else self.items[index]


class ClassificationTrainer(ProjectionTrainer):
    """Trainer for classifiers of any architecture.

    Args:
        model: Gives `logits`, `[batch, classes]`.
        args: As for Trainer.
        train: Inputs with their labels.
        validation: The same to measure on; measured in this order.
        tokenizer: Pads batches, and is saved in each checkpoint.
        metrics: Names of metrics of `scores`.
        class_weights: As for `classification_loss`.
        early_stopping_patience: Evaluations without a better metric after which training ends.
        others: As for `ProjectionTrainer`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        *,
        train: LabelledItems,
        validation: LabelledItems,
        tokenizer: PreTrainedTokenizerBase,
        metrics: Sequence[str],
        class_weights: Tensor | None = None,
        early_stopping_patience: int | None = None,
        **others: Any,
    ) -> None:
        def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
            return classification_loss(
                outputs["logits"],
                labels,
                class_weights=class_weights,
                label_smoothing=args.label_smoothing_factor,
                num_items_in_batch=num_items_in_batch,
            )

        def measure(prediction: EvalPrediction) -> dict[str, float]:
            targets = prediction.label_ids
            multi_label = targets.ndim == 2
            probabilities = class_probabilities(prediction.predictions, multi_label=multi_label)
            answers = predicted(probabilities, multi_label=multi_label)
            # In place of the training's loss, which class weights and smoothing change.
            loss = float(losses(probabilities, targets).mean())
            return {**scores(answers, targets, metrics, probabilities.shape[1]), "loss": loss}

        def describe(found: dict[str, float]) -> str:
            shown = ", ".join(f"{name} {found[f'eval_{name}']:.3f}" for name in metrics)
            return f"validation {shown}, loss {found['eval_loss']:.3f}"

        self._texts_per_update = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        super().__init__(
            model,
            args,
            progress=ProgressBar(each=self._texts_per_update, what="texts", describe=describe),
            train_dataset=FilledTexts(train),
            eval_dataset=validation,
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=measure,
            compute_loss_func=loss,
            **others,
        )
        if early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(early_stopping_patience))

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler:
        """Of ours, for batches of all processes together."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return LengthGroupedSampler(
            dataset.items.lengths,
            batch_size=self._texts_per_update,
            seed=self.args.seed,
            multiple=self.sequences_together,
        )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler:
        """In order, so that answers can be told from each other; whoever wants speed sorts by length before."""
        return SequentialSampler(eval_dataset)


def curves(history: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, list[list[float]]]:
    """Updates with the training loss, and with each metric of the validation."""
    named = {"training loss": "loss", "validation loss": "eval_loss", **{name: f"eval_{name}" for name in metrics}}
    return {
        name: [[entry["step"], entry[logged]] for entry in history if logged in entry] for name, logged in named.items()
    }
