"""Training of a linear student on what its full-attention teacher does, layer by layer and then as a whole.

Axes: batch, seq_len (n), embed, classes (of an answer: words, labels, positions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from linformer_kit.data.encoding import Window
from linformer_kit.data.passages import LengthSampler
from linformer_kit.training.callbacks import ProgressBar
from linformer_kit.training.tracing import Trace, traced
from linformer_kit.training.trainer import ProjectionTrainer

MEASURES = ("loss", "error", "cosine", "agreement")
_LEAST_SPREAD = 1e-12  # of hidden states that are all the same
_LEAST = -1e4  # a score that leaves no probability, in half precision too
# Answers of heads by the names that models give them; a bare encoder has none.
_ANSWERS = ("logits", "start_logits", "end_logits")


@dataclass(frozen=True)
class Weights:
    """What the parts of the loss count: errors of hidden states and of what attention gives out, and at the end."""

    hidden: float
    attention: float
    output: float


def relative_error(
    student: Float[Tensor, "batch seq_len embed"],
    teacher: Float[Tensor, "batch seq_len embed"],
    real: Bool[Tensor, "batch seq_len"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Squared distance of each text's tokens, and that of the teacher's from the mean of all; padding has no part.

    So the quotient of their sums is 0 for a perfect student and 1 for one that knows the mean alone, in every layer.
    """
    student, teacher, each = student.float(), teacher.float(), real[..., None].float()
    mean = (teacher * each).sum(dim=(0, 1)) / each.sum()
    distance = ((student - teacher).square() * each).flatten(1).sum(dim=1)
    spread = ((teacher - mean).square() * each).flatten(1).sum(dim=1)
    return distance, spread


def mean_embedding(
    hidden: Float[Tensor, "batch seq_len embed"], real: Bool[Tensor, "batch seq_len"]
) -> Float[Tensor, "batch embed"]:
    """The mean of the real tokens' hidden states, as sentence embedders have it."""
    each = real[..., None].float()
    return (hidden.float() * each).sum(dim=1) / each.sum(dim=1).clamp(min=1)


def divergence(
    student: Float[Tensor, "answers classes"], teacher: Float[Tensor, "answers classes"], temperature: float
) -> Float[Tensor, " answers"]:
    """Kullback-Leibler divergence of the student's answers from the teacher's, in nats, times temperature².

    Source: Hinton et al. 2015, section 2.
    """
    ours, theirs = (logits.float().div(temperature).log_softmax(dim=-1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1) * temperature**2


class DistillationTrainer(ProjectionTrainer):
    """Trainer of a student by its teacher.

    The loss is the mean over the layers of the relative errors of hidden states and of what attention gives out, and
    the divergence of the answers or the cosine distance of mean embeddings. In the first updates each layer takes in
    what its teacher took in, and learns on its own. There is no dropout: what is learned has no noise.

    Args:
        model: The student, linear.
        args: As for Trainer.
        teacher: What it learns from, with full attention.
        attention_names: The attention modules of student and of teacher, in the order of their layers.
        stands_for: The number of the teacher's layer that each of the student's ends with; None: its own.
        train: Inputs, indexed by the keys of `LengthSampler`.
        validation: Inputs to measure on.
        tokenizer: Pads, and is saved in each checkpoint.
        longest: Of the inputs, in tokens.
        weights: What the parts of the loss count.
        layerwise_steps: The first updates.
        temperature: Of the answers.
        others: As for `ProjectionTrainer`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        *,
        teacher: PreTrainedModel,
        attention_names: tuple[Sequence[str], Sequence[str]],
        stands_for: Sequence[int] | None = None,
        train: Dataset,
        validation: Sequence[Window],
        tokenizer: PreTrainedTokenizerBase,
        longest: int,
        weights: Weights,
        layerwise_steps: int,
        temperature: float = 1.0,
        **others: Any,
    ) -> None:
        texts = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        super().__init__(
            model,
            args,
            progress=ProgressBar(each=texts, what="texts", describe=_described),
            train_dataset=train,
            eval_dataset=validation,
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=_measures,
            **others,
        )
        self.teacher = teacher.eval().to(args.device)
        self.student_attention, self.teacher_attention = attention_names
        self.stands_for = stands_for
        self.longest = longest
        self.weights = weights
        self.layerwise_steps = layerwise_steps
        self.temperature = temperature
        self.mask_token_id = tokenizer.mask_token_id if learns_words(teacher) else None

    def curves(self) -> dict[str, list[list[float]]]:
        """Updates with each measure on held-out text."""
        history = self.state.log_history
        return {
            name: [[entry["step"], entry[f"eval_{name}"]] for entry in history if f"eval_{name}" in entry]
            for name in MEASURES
        }

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of one batch."""
        model.eval()
        alone = self.state.global_step < self.layerwise_steps
        (theirs, target), (ours, outputs) = self._both(model, inputs, alone=alone)
        real = _real(inputs, theirs.outputs[-1])
        loss = self._layer_loss(ours, theirs, real)
        if self.weights.output and not alone:
            loss = loss + self.weights.output * self._output_loss(outputs, target, inputs, real)
        return (loss, outputs) if return_outputs else loss

    def _both(self, model: nn.Module, inputs: dict[str, Tensor], *, alone: bool) -> tuple[tuple[Trace, Any], ...]:
        """What the layers of teacher and student do, and what comes out."""
        student = self.accelerator.unwrap_model(model)
        with torch.no_grad(), traced(self.teacher, self.teacher_attention) as theirs:
            target = self.teacher(**inputs)
        theirs = _of_layers(theirs, self.stands_for)
        with traced(student, self.student_attention, theirs.inputs if alone else None) as ours:
            outputs = model(**inputs)
        return (theirs, target), (ours, outputs)

    def _layer_loss(self, ours: Trace, theirs: Trace, real: Tensor) -> Tensor:
        loss = theirs.outputs[0].new_zeros((), dtype=torch.float32)
        for weight, students, teachers in (
            (self.weights.hidden, ours.outputs, theirs.outputs),
            (self.weights.attention, ours.attention, theirs.attention),
        ):
            for student, teacher in zip(students, teachers, strict=True) if weight else ():
                distance, spread = relative_error(student.flatten(2), teacher.flatten(2), real)
                loss = loss + weight * distance.sum() / spread.sum().clamp(min=_LEAST_SPREAD) / len(teachers)
        return loss

    def _output_loss(self, outputs: Any, target: Any, inputs: dict[str, Tensor], real: Tensor) -> Tensor:
        answers = [name for name in _ANSWERS if name in target]
        if not answers:
            student, teacher = (mean_embedding(made[0], real) for made in (outputs, target))
            return 1 - torch.cosine_similarity(student, teacher).mean()
        pairs = [self._answers(outputs[name], target[name], inputs, real) for name in answers]
        each = [divergence(*pair, self.temperature) for pair in pairs]
        # A short text may have no hidden token at all, and so no answer.
        return torch.stack([found.sum() / max(1, len(found)) for found in each]).mean()

    def _answers(
        self, student: Tensor, teacher: Tensor, inputs: dict[str, Tensor], real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Answers in rows: those at hidden tokens, at real tokens, or of texts."""
        if self.mask_token_id is not None:
            asked = inputs["input_ids"] == self.mask_token_id
            return student[asked], teacher[asked]
        if teacher.dim() == 3:
            return student[real], teacher[real]
        if teacher.shape == real.shape:  # positions in a text are the classes
            return student.masked_fill(~real, _LEAST), teacher.masked_fill(~real, _LEAST)
        return student, teacher

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
        """Lengths of ours, alike in all processes."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        together = self.args.train_batch_size * self.args.world_size
        return LengthSampler(len(dataset), longest=self.longest, together=together, seed=self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> SequentialSampler:
        return SequentialSampler(eval_dataset)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """The loss as a whole, and of each text what adds up to the measures."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            (theirs, target), (ours, outputs) = self._both(model, inputs, alone=False)
            real = _real(inputs, theirs.outputs[-1])
            loss = self._layer_loss(ours, theirs, real) + self.weights.output * self._output_loss(
                outputs, target, inputs, real
            )
            distance, spread = relative_error(ours.outputs[-1], theirs.outputs[-1], real)
            student, teacher = (mean_embedding(trace.outputs[-1], real) for trace in (ours, theirs))
            cosine = torch.cosine_similarity(student, teacher)
            agreed, asked = self._agreement(outputs, target, inputs, real)
        texts = len(real)
        losses = torch.full((texts,), float(loss), device=real.device)
        each = torch.full((texts,), 1 / texts, device=real.device)
        return loss, (losses, distance, spread, cosine, agreed * each, asked * each), torch.ones(texts)

    def _agreement(self, outputs: Any, target: Any, inputs: dict[str, Tensor], real: Tensor) -> tuple[Tensor, Tensor]:
        """How many answers are those of the teacher, and of how many."""
        pairs = [self._answers(outputs[name], target[name], inputs, real) for name in _ANSWERS if name in target]
        agreed = [(ours.argmax(-1) == theirs.argmax(-1)).sum() for ours, theirs in pairs]
        zero = real.new_zeros((), dtype=torch.float32)
        return sum(agreed, zero), zero + sum(len(theirs) for _, theirs in pairs)


def learns_words(model: PreTrainedModel) -> bool:
    """Whether a model's answers are words for hidden tokens."""
    return type(model).__name__.endswith("ForMaskedLM")


def _of_layers(trace: Trace, stands_for: Sequence[int] | None) -> Trace:
    """Of a teacher's trace what concerns a student with fewer layers."""
    if stands_for is None:
        return trace
    firsts = [0, *(last + 1 for last in stands_for[:-1])]
    return Trace(
        [trace.inputs[first] for first in firsts],
        [trace.outputs[last] for last in stands_for],
        [trace.attention[last] for last in stands_for],
    )


def _real(inputs: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """True at real tokens."""
    if (mask := inputs.get("attention_mask")) is not None:
        return mask != 0
    return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)


def _measures(prediction: EvalPrediction) -> dict[str, float]:
    loss, distance, spread, cosine, agreed, asked = (
        np.asarray(each, dtype=np.float64) for each in prediction.predictions
    )
    found = {"loss": loss.mean(), "error": distance.sum() / spread.sum(), "cosine": cosine.mean()}
    if asked.sum():
        found["agreement"] = agreed.sum() / asked.sum()
    return {name: float(value) for name, value in found.items()}


def _described(metrics: dict[str, float]) -> str:
    agreement = f", {metrics['eval_agreement']:.1%} of the answers" if "eval_agreement" in metrics else ""
    return (
        f"validation loss {metrics['eval_loss']:.4f}, error {metrics['eval_error']:.4f}, "
        f"cosine {metrics['eval_cosine']:.4f}{agreement}"
    )
