"""Training of a linear student on what its full-attention teacher does, layer by layer and then as a whole.

Axes: batch, seq_len (n), embed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from linformer_kit.data.encoding import Window
from linformer_kit.data.passages import LengthSampler
from linformer_kit.parallel.collectives import average_gradients
from linformer_kit.training.answers import agreement, kind_of, mean_embedding, output_loss
from linformer_kit.training.callbacks import ProgressBar
from linformer_kit.training.tracing import Trace, traced
from linformer_kit.training.trainer import ProjectionTrainer

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
        joint_learning_rate_factor: Learning rate of the others, as a multiple.
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
        joint_learning_rate_factor: float = 1.0,
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
        self.add_callback(_Restart(layerwise_steps))
        self.teacher = teacher.eval().to(args.device)
        self.student_attention, self.teacher_attention = attention_names
        self.stands_for = stands_for
        self.longest = longest
        self.weights = weights
        self.layerwise_steps = layerwise_steps
        self.joint_learning_rate_factor = joint_learning_rate_factor
        self.temperature = temperature
        self.kind = kind_of(teacher)
        self.mask_token_id = tokenizer.mask_token_id

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
        lesson = self._lesson(inputs, alone=self.state.global_step < self.layerwise_steps)
        return (lesson.loss, lesson.outputs) if return_outputs else lesson.loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """As of `ExactTrainer`, and the mean gradient of all processes.

        DDP would look for it in what comes out of the model, with which layers that learn alone have nothing to do.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.args.world_size > 1 and self.accelerator.sync_gradients:
            average_gradients(self.model)
        return loss

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Warm-up and linear fall twice: for the layers alone, and then for all together."""
        if self.lr_scheduler is None:  # type: ignore[has-type]
            rate = functools.partial(
                learning_rate_share,
                alone=self.layerwise_steps,
                updates=num_training_steps,
                warmup=self.args.get_warmup_steps(num_training_steps),
                joint=self.joint_learning_rate_factor,
            )
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, rate)
        return self.lr_scheduler

    def _lesson(self, inputs: dict[str, Tensor], *, alone: bool) -> _Lesson:
        """What teacher and student do with a batch, and the loss."""
        student = self.accelerator.unwrap_model(self.model)
        with torch.no_grad(), traced(self.teacher, self.teacher_attention) as theirs:
            target = self.teacher(**inputs)
        theirs = _of_layers(theirs, self.stands_for)
        with traced(student, self.student_attention, theirs.inputs if alone else None) as ours:
            outputs = student(**inputs)
        real = _real(inputs, theirs.outputs[-1])
        loss = self._layer_loss(ours, theirs, real)
        answers = (self.kind, outputs, target, real, inputs["input_ids"] == self.mask_token_id)
        if self.weights.output and not alone:
            loss = loss + self.weights.output * output_loss(*answers, self.temperature)
        return _Lesson(loss, outputs, ours, theirs, real, answers)

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

    @property
    def sequences_of_an_epoch(self) -> int:
        """As many as the sampler gives, which leaves out a forward pass that would not be whole."""
        return len(self._get_train_sampler())

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
            lesson = self._lesson(inputs, alone=False)
            ours, theirs = lesson.ours.outputs[-1], lesson.theirs.outputs[-1]
            distance, spread = relative_error(ours, theirs, lesson.real)
            student, teacher = (mean_embedding(hidden, lesson.real) for hidden in (ours, theirs))
            cosine = torch.cosine_similarity(student, teacher)
            answers = torch.tensor(agreement(*lesson.answers), device=cosine.device) / len(cosine)
        losses, agreed, asked = (torch.ones_like(cosine) * each for each in (lesson.loss, *answers))
        return lesson.loss, (losses, distance, spread, cosine, agreed, asked), torch.ones_like(cosine)


class _Restart(TrainerCallback):
    """Where the layers begin to learn together, AdamW forgets: gradients are much longer than those it knows, and steps
    by the old measure would undo what was learned (docs/log.md)."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        if state.global_step == self.update and optimizer is not None:
            getattr(optimizer, "optimizer", optimizer).state.clear()


class _Lesson(NamedTuple):
    """One batch: the loss, what comes out of the student, what its layers and the teacher's do, where tokens are real,
    and the first arguments of `output_loss` and `agreement`."""

    loss: Tensor
    outputs: Any
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
