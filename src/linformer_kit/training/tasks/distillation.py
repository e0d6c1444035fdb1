"""Training of a linear student on what its full-attention teacher does, layer by layer and then as a whole.

Axes: batch, seq_len (n), embed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.data import Dataset
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.data.encoding import Window
from linformer_kit.data.passages import passage_keys
from linformer_kit.training.tasks.answers import agreement, kind_of, mean_embedding, output_loss
from linformer_kit.training.tasks.base import Batch, Task
from linformer_kit.training.tasks.tracing import Trace, traced

MEASURES = ("loss", "error", "cosine", "agreement")
_LEAST_SPREAD = 1e-12  # of hidden states that are all the same


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


def learning_rate_share(update: int, *, alone: int, updates: int, warmup: int, joint: float) -> float:
    """The learning rate of an update as a share of the highest.

    Args:
        update: Its number, from 0.
        alone: Updates in which each layer learns on its own.
        updates: All.
        warmup: Updates of linear warm-up of either part, at most half of it.
        joint: Highest share once all learn together.
    """
    first, last, highest = (0, alone, 1.0) if update < alone else (alone, updates, joint)
    warmup = min(warmup, (last - first) // 2)
    rise, fall = (update - first + 1) / (warmup + 1), (last - update) / max(1, last - first - warmup)
    return highest * max(0.0, min(rise, fall, 1.0))


class Distillation(Task):
    """Learn from a teacher what it does.

    The loss is the mean over the layers of the relative errors of hidden states and of attention outputs, and the
    divergence of the answers or the cosine distance of mean embeddings. In the first updates each layer gets the inputs
    of its teacher's layer and learns on its own. There is no dropout: the targets have no noise.

    Args:
        model: The student, linear.
        tokenizer: Pads batches.
        teacher: What it learns from, with full attention.
        attention_names: The attention modules of student and of teacher, in the order of their layers.
        stands_for: The number of the teacher's layer that each of the student's ends with; None: its own.
        train: Inputs, indexed by the keys of `passage_keys`.
        validation: Inputs to measure on.
        longest: Of the inputs, in tokens.
        seed: Seed of the order.
        weights: Weights of the parts of the loss.
        layerwise_steps: The first updates.
        temperature: Of the answers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        teacher: PreTrainedModel,
        attention_names: tuple[Sequence[str], Sequence[str]],
        stands_for: Sequence[int] | None = None,
        train: Dataset,
        validation: Sequence[Window],
        longest: int,
        seed: int,
        weights: Weights,
        layerwise_steps: int,
        temperature: float = 1.0,
    ) -> None:
        collate = DataCollatorWithPadding(tokenizer)
        super().__init__(model, tokenizer, train=train, validation=validation, collate=collate)  # type: ignore[arg-type]
        self.teacher = teacher.requires_grad_(False)
        self.student_attention, self.teacher_attention = attention_names
        self.stands_for = stands_for
        self.weights = weights
        self.layerwise_steps = layerwise_steps
        self.temperature = temperature
        self.kind = kind_of(teacher)
        self.mask_token_id = tokenizer.mask_token_id
        self._longest, self._seed = longest, seed
        self._alone = False

    def train(self, mode: bool = True) -> Distillation:
        """Nothing has dropout here."""
        return super().train(False)

    def order(self, epoch: int, *, together: int, multiple: int) -> list[Any]:
        inputs = len(self.train_items)  # type: ignore[arg-type]
        return passage_keys(inputs, longest=self._longest, together=together, seed=self._seed, epoch=epoch)

    def begin(self, update: int | None) -> None:
        """Choose whether layers learn on their own."""
        self._alone = update is not None and update < self.layerwise_steps

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        return self._lesson(batch, alone=self._alone).loss

    def _lesson(self, inputs: Batch, *, alone: bool) -> _Lesson:
        """What teacher and student do with a batch, and the loss."""
        with torch.no_grad(), traced(self.teacher, self.teacher_attention) as theirs:
            target = self.teacher(**inputs)
        theirs = _of_layers(theirs, self.stands_for)
        with traced(self.model, self.student_attention, theirs.inputs if alone else None) as ours:
            outputs = self.model(**inputs)
        real = _real(inputs, theirs.outputs[-1])
        loss = self._layer_loss(ours, theirs, real)
        answers = (self.kind, outputs, target, real, inputs["input_ids"] == self.mask_token_id)
        if self.weights.output and not alone:
            loss = loss + self.weights.output * output_loss(*answers, self.temperature)
        return _Lesson(loss, ours, theirs, real, answers)

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

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """The loss as a whole, and of each text what adds up to the metrics."""
        lesson = self._lesson(batch, alone=False)
        ours, theirs = lesson.ours.outputs[-1], lesson.theirs.outputs[-1]
        distance, spread = relative_error(ours, theirs, lesson.real)
        student, teacher = (mean_embedding(hidden, lesson.real) for hidden in (ours, theirs))
        cosine = torch.cosine_similarity(student, teacher)
        answers = torch.tensor(agreement(*lesson.answers), device=cosine.device) / len(cosine)
        losses, agreed, asked = (torch.ones_like(cosine) * each for each in (lesson.loss, *answers))
        return losses, distance, spread, cosine, agreed, asked

    def metrics(self, *measured: np.ndarray) -> dict[str, float]:
        loss, distance, spread, cosine, agreed, asked = (np.asarray(each, dtype=np.float64) for each in measured)
        found = {"loss": loss.mean(), "error": distance.sum() / spread.sum(), "cosine": cosine.mean()}
        if asked.sum():
            found["agreement"] = agreed.sum() / asked.sum()
        return {name: float(value) for name, value in found.items()}

    def describe(self, metrics: Mapping[str, float]) -> str:
        agreement = f", {metrics['agreement']:.1%} of the answers" if "agreement" in metrics else ""
        return (
            f"validation loss {metrics['loss']:.4f}, error {metrics['error']:.4f}, "
            f"cosine {metrics['cosine']:.4f}{agreement}"
        )


class _Lesson(NamedTuple):
    """One batch: the loss, what the layers of student and teacher do, where tokens are real, and the first arguments
    of `output_loss` and `agreement`."""

    loss: Tensor
    ours: Trace
    theirs: Trace
    real: Tensor
    answers: tuple[Any, ...]


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
