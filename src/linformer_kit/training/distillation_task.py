"""Distillation of a full-attention teacher into a linear student, layer by layer and then as a whole.

Axes: batch, seq_len (n), embed, answers (rows), classes (words, labels).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.data.passages import passage_keys
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.training.state import learning_rate_schedule
from linformer_kit.training.task import Batch, Task
from linformer_kit.training.tracing import Trace, special_tokens, split_into_pieces, traced

MEASURES = ("loss", "error", "cosine", "agreement")
_LEAST_SPREAD = 1e-12  # avoids division by zero if all hidden states are equal
Kind = Literal["words", "tokens", "classes", "labels", "numbers", "embeddings"]


def kind_of(model: PreTrainedModel) -> Kind:
    """What a model predicts: words for masked tokens, classes of tokens, a class of a text, several labels of a text,
    or numbers; without a head, an embedding."""
    name, config = type(model).__name__, model.config
    if name.endswith("ForMaskedLM"):
        return "words"
    if name.endswith("ForTokenClassification"):
        return "tokens"
    if not name.endswith("ForSequenceClassification"):
        return "embeddings"
    if config.problem_type == "multi_label_classification":
        return "labels"
    return "numbers" if config.problem_type == "regression" or config.num_labels == 1 else "classes"


def mean_embedding(
    hidden: Float[Tensor, "batch seq_len embed"], real: Bool[Tensor, "batch seq_len"]
) -> Float[Tensor, "batch embed"]:
    """Mean of the hidden states of real tokens, as in sentence embedding models."""
    each = real[..., None].float()
    return (hidden.float() * each).sum(dim=1) / each.sum(dim=1).clamp(min=1)


def answers(
    kind: Kind,
    outputs: Mapping[str, Tensor],
    real: Bool[Tensor, "batch seq_len"],
    hidden: Bool[Tensor, "batch seq_len"],
) -> Float[Tensor, "answers classes"]:
    """What a model predicts: embeddings, numbers, or logits, of which each label has two, for yes and no.

    Args:
        kind: What the model predicts.
        outputs: Its outputs by name.
        real: True at real tokens.
        hidden: True at mask tokens.
    """
    if kind == "embeddings":
        return mean_embedding(outputs["last_hidden_state"], real)
    logits = outputs["logits"]
    if kind == "labels":
        return torch.stack([logits, torch.zeros_like(logits)], dim=-1).flatten(0, 1)
    return logits[hidden] if kind == "words" else logits[real] if kind == "tokens" else logits


def answer_loss(
    kind: Kind, student: Float[Tensor, "answers classes"], teacher: Float[Tensor, "answers classes"]
) -> Float[Tensor, ""]:
    """Mean error of the student's answers: cosine distance of embeddings, squared distance of numbers; otherwise the
    Kullback-Leibler divergence from the teacher's distribution, in nats.

    Source: Hinton et al. 2015, section 2, at temperature 1.
    """
    student, teacher = student.float(), teacher.float()
    if kind == "embeddings":
        return 1 - torch.cosine_similarity(student, teacher).mean()
    if kind == "numbers":
        return (student - teacher).square().mean()
    ours, theirs = student.log_softmax(dim=-1), teacher.log_softmax(dim=-1)
    # Texts may have no masked token, and so no answer.
    return F.kl_div(ours, theirs, reduction="sum", log_target=True) / max(1, len(teacher))


def relative_error(
    student: Float[Tensor, "batch seq_len embed"],
    teacher: Float[Tensor, "batch seq_len embed"],
    real: Bool[Tensor, "batch seq_len"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Squared distance of student and teacher, and of the teacher and its mean, for each text; padding is excluded.

    The quotient of their sums is 0 for a perfect student and 1 for one that outputs the mean, in every layer.
    """
    student, teacher, each = student.float(), teacher.float(), real[..., None].float()
    mean = (teacher * each).sum(dim=(0, 1)) / each.sum()
    distance = ((student - teacher).square() * each).flatten(1).sum(dim=1)
    spread = ((teacher - mean).square() * each).flatten(1).sum(dim=1)
    return distance, spread


def two_schedules(layerwise: int, *, updates: int, warmup: int, joint: float) -> Callable[[int], float]:
    """Warm-up and linear decay twice, for layerwise and for joint training; as `learning_rate_schedule`.

    Args:
        layerwise: Number of updates of layerwise training.
        updates: Total number of updates.
        warmup: Updates of linear warm-up of each part, at most half of the part.
        joint: Peak fraction in joint training.
    """
    first, second = (
        learning_rate_schedule("linear", updates=count, warmup_steps=min(warmup, count // 2))
        for count in (layerwise, updates - layerwise)
    )
    return lambda update: first(update) if update < layerwise else joint * second(update - layerwise)


class Distillation(Task):
    """Train a student to reproduce its teacher.

    The loss is the mean over the layers of the relative errors of hidden states and of attention outputs, plus
    `answer_loss`. In the first updates each layer of the student gets the inputs of the teacher's layer and is trained
    independently. There is no dropout, so the targets have no noise.

    Args: as of `Task`, and
        teacher: The teacher, with full attention; `model` is the student.
        piece_length: Longest input of the teacher in tokens; it reads longer ones in pieces. None: it reads all whole.
        layerwise_steps: Number of first updates in which layers are trained independently.
    """

    def __init__(
        self,
        model: LinearizedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        teacher: PreTrainedModel,
        piece_length: int | None = None,
        layerwise_steps: int,
        **data: Any,
    ) -> None:
        super().__init__(model, tokenizer, **data)
        self.teacher = teacher.requires_grad_(False)
        self.student_attention = model.attention_names()
        self.teacher_attention = [layer.name for layer in attention_layers(teacher)]
        self.layerwise_steps = layerwise_steps
        self.kind = kind_of(teacher)
        self.mask_token_id = tokenizer.mask_token_id
        self._longest = model.config.linformer["seq_len"]
        self._piece_length = piece_length
        self._special = (0, 0) if piece_length is None else special_tokens(tokenizer)
        self._layerwise = False

    def train(self, mode: bool = True) -> Distillation:
        """Stay in evaluation mode, so that there is no dropout."""
        return super().train(False)

    def order(self, epoch: int, global_batch_size: int) -> list[Any]:
        inputs = len(self.train_items)
        return passage_keys(inputs, longest=self._longest, batch_size=global_batch_size, seed=self.seed, epoch=epoch)

    def begin(self, update: int | None) -> None:
        """Choose between layerwise and joint training."""
        self._layerwise = update is not None and update < self.layerwise_steps

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        return self._compare(batch, layerwise=self._layerwise)[0]

    def _compare(self, inputs: Batch, *, layerwise: bool) -> tuple[Tensor, Tensor, list[Trace], list[Tensor]]:
        """Run student and teacher on a batch.

        Returns:
            The loss, True at real tokens, the traces of student and teacher, and their answers.
        """
        theirs, target = self._teacher_outputs(inputs)
        with traced(self.model, self.student_attention, theirs.inputs if layerwise else None) as ours:
            outputs = self.model(**inputs)
        ids = inputs["input_ids"]
        real = inputs.get("attention_mask", torch.ones_like(ids)) != 0
        loss = self._layer_loss(ours, theirs, real)
        pair = [answers(self.kind, each, real, ids == self.mask_token_id) for each in (outputs, target)]
        if not layerwise:
            loss = loss + answer_loss(self.kind, *pair)
        return loss, real, [ours, theirs], pair

    @torch.no_grad()
    def _teacher_outputs(self, inputs: Batch) -> tuple[Trace, Mapping[str, Tensor]]:
        """Trace and outputs of the teacher."""
        if self._piece_length is None or inputs["input_ids"].shape[1] <= self._piece_length:
            with traced(self.teacher, self.teacher_attention) as trace:
                return trace, self.teacher(**inputs)
        pad = self.tokenizer.pad_token_id
        pieces = split_into_pieces(inputs, longest=self._piece_length, special=self._special, pad_token_id=pad)
        with traced(self.teacher, self.teacher_attention) as trace:
            outputs = self.teacher(**pieces.inputs)
        return pieces.joined_all(trace, outputs)

    def _layer_loss(self, ours: Trace, theirs: Trace, real: Tensor) -> Tensor:
        loss = theirs.outputs[0].new_zeros((), dtype=torch.float32)
        for students, teachers in ((ours.outputs, theirs.outputs), (ours.attention, theirs.attention)):
            for student, teacher in zip(students, teachers, strict=True):
                distance, spread = relative_error(student.flatten(2), teacher.flatten(2), real)
                loss = loss + distance.sum() / spread.sum().clamp(min=_LEAST_SPREAD) / len(teachers)
        return loss

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """The loss of the batch, and for each text the values that `metrics` sums or averages."""
        loss, real, traces, (student, teacher) = self._compare(batch, layerwise=False)
        ours, theirs = (trace.outputs[-1] for trace in traces)
        distance, spread = relative_error(ours, theirs, real)
        cosine = torch.cosine_similarity(mean_embedding(ours, real), mean_embedding(theirs, real))
        agreed = (student.argmax(dim=-1) == teacher.argmax(dim=-1)).float()
        asked = 0 if self.kind in ("embeddings", "numbers") else len(agreed)
        of_batch = loss, agreed.sum() / len(cosine), asked / len(cosine)
        losses, right, answered = (torch.ones_like(cosine) * value for value in of_batch)
        return losses, distance, spread, cosine, right, answered

    def metrics(self, *measured: np.ndarray) -> dict[str, float]:
        loss, distance, spread, cosine, agreed, asked = (np.asarray(each, dtype=np.float64) for each in measured)
        values = {"loss": loss.mean(), "error": distance.sum() / spread.sum(), "cosine": cosine.mean()}
        if asked.sum():
            values["agreement"] = agreed.sum() / asked.sum()
        return {name: float(value) for name, value in values.items()}
