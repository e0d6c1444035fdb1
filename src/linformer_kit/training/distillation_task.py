"""Distillation of a full-attention teacher into a linear student, layer by layer and then as a whole.

Axes: batch, seq_len (n), embed, answers (rows), classes (words, labels).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

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
from linformer_kit.training.task import Batch, Task, to_device
from linformer_kit.training.tracing import Trace, layer_names, special_tokens, split_into_pieces, traced

SPREAD = "the held-out texts, before the first update"  # where the spread of the teacher's states is measured
MEASURES = ("loss", "error", "cosine", "agreement")
_LEAST_SPREAD = 1e-12  # avoids division by zero if all hidden states are equal
_WITHOUT_AGREEMENT = ("embeddings", "numbers")  # kinds of answers that are hardly ever equal
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
    """Sum of the errors of the student's answers: cosine distance of embeddings, squared distance of numbers; otherwise
    the Kullback-Leibler divergence from the teacher's distribution, in nats.

    Source: Hinton et al. 2015, section 2, at temperature 1.
    """
    student, teacher = student.float(), teacher.float()
    if kind == "embeddings":
        return (1 - torch.cosine_similarity(student, teacher)).sum()
    if kind == "numbers":
        return (student - teacher).square().mean(dim=-1).sum()
    ours, theirs = student.log_softmax(dim=-1), teacher.log_softmax(dim=-1)
    return F.kl_div(ours, theirs, reduction="sum", log_target=True)


def squared_distance(
    student: Float[Tensor, "batch seq_len embed"],
    teacher: Float[Tensor, "batch seq_len embed"],
    real: Bool[Tensor, "batch seq_len"],
) -> Float[Tensor, ""]:
    """Sum of the squared distances of the hidden states of real tokens."""
    return ((student.float() - teacher.float()).square() * real[..., None]).sum()


class Spread:
    """Mean squared distance of vectors from their mean, of any number of batches of them, in float64."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, torch.zeros(()).double(), 0.0

    def add(self, vectors: Float[Tensor, "vectors embed"]) -> None:
        """Count some vectors."""
        vectors = vectors.float().cpu().double()
        self._count += len(vectors)
        self._sum = self._sum + vectors.sum(dim=0)
        self._squares += float(vectors.square().sum())

    @property
    def value(self) -> float:
        """The spread of all vectors so far."""
        mean = self._sum / max(1, self._count)
        return self._squares / max(1, self._count) - float(mean.square().sum())


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


class Compared(NamedTuple):
    """A batch, as student and teacher read it."""

    real: Bool[Tensor, "batch seq_len"]  # True at real tokens
    student: Trace
    teacher: Trace
    answers: list[Tensor]  # of student and teacher


def real_tokens(inputs: Batch) -> Bool[Tensor, "batch seq_len"]:
    """True at real tokens."""
    ids = inputs["input_ids"]
    return inputs.get("attention_mask", torch.ones_like(ids)) != 0


class Distillation(Task):
    """Train a student to reproduce its teacher.

    The loss is the mean over the layers of the relative errors of hidden states and of attention outputs, plus the mean
    of `answer_loss`. A relative error is the mean squared distance of the tokens' vectors, divided by the spread of the
    teacher's: 0 for a perfect student and 1 for one that outputs the mean, in every layer. The spreads are `constants`,
    measured on the validation texts, so that an update does not depend on how its texts are split into forward passes.

    In the first updates each layer of the student gets the inputs of the teacher's layer and is trained independently.
    There is no dropout, so the targets have no noise.

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
        self._layers = len(layer_names(self.teacher_attention))
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

    def order(self, epoch: int, update_size: int) -> list[Any]:
        inputs = len(self.train_items)
        return passage_keys(inputs, longest=self._longest, batch_size=update_size, seed=self.seed, epoch=epoch)

    @property
    def constant_count(self) -> int:
        return self._layers + len(self.teacher_attention)

    def measure_constants(self, device: torch.device) -> list[float]:
        """The spread of the teacher's hidden states after each layer, then of the outputs of each attention module."""
        spreads = [Spread() for _ in range(self.constant_count)]
        for item in self.validation_items:  # one by one, which does not depend on settings
            inputs = to_device(dict(self.collate([item])), device)
            trace, _ = self._teacher_outputs(inputs)
            real = real_tokens(inputs)
            for spread, states in zip(spreads, (*trace.outputs, *trace.attention), strict=True):
                spread.add(states.flatten(2)[real])
        return [max(spread.value, _LEAST_SPREAD) for spread in spreads]

    def labels(self, batch: Batch) -> Tensor:
        """Numbers of real tokens and of answers."""
        ids, tokens = batch["input_ids"], real_tokens(batch).sum()
        counts = {"words": (ids == self.mask_token_id), "tokens": real_tokens(batch)}
        answered = counts[self.kind].sum() if self.kind in counts else tokens.new_tensor(len(ids))
        return torch.stack([tokens, answered * (self.teacher.config.num_labels if self.kind == "labels" else 1)])

    def begin(self, update: int | None) -> None:
        """Choose between layerwise and joint training."""
        self._layerwise = update is not None and update < self.layerwise_steps

    def forward(self, batch: Batch, labels: Tensor) -> Tensor:  # type: ignore[override]
        tokens, count = labels
        compared = self._compare(batch, layerwise=self._layerwise)
        loss = self._layer_errors(compared) / tokens
        if not self._layerwise:
            loss = loss + answer_loss(self.kind, *compared.answers) / count.clamp(min=1)  # maybe no token is masked
        return loss

    def _compare(self, inputs: Batch, *, layerwise: bool) -> Compared:
        """Run student and teacher on a batch; with `layerwise` each layer of the student on the teacher's inputs."""
        theirs, target = self._teacher_outputs(inputs)
        with traced(self.model, self.student_attention, theirs.inputs if layerwise else None) as ours:
            outputs = self.model(**inputs)
        real, masked = real_tokens(inputs), inputs["input_ids"] == self.mask_token_id
        pair = [answers(self.kind, each, real, masked) for each in (outputs, target)]
        return Compared(real, ours, theirs, pair)

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

    def _layer_errors(self, compared: Compared) -> Tensor:
        """Relative errors of hidden states and of attention outputs, each a mean over layers, summed over tokens."""
        ours, theirs = compared.student, compared.teacher
        total = theirs.outputs[0].new_zeros((), dtype=torch.float32)
        spreads = iter(self.constants)
        for students, teachers in ((ours.outputs, theirs.outputs), (ours.attention, theirs.attention)):
            for student, teacher in zip(students, teachers, strict=True):
                distance = squared_distance(student.flatten(2), teacher.flatten(2), compared.real)
                total = total + distance / next(spreads) / len(teachers)
        return total

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """Sums of the batch, divided evenly among its texts, and the cosine of each text's mean embeddings."""
        compared = self._compare(batch, layerwise=False)
        ours, theirs, (student, teacher) = compared.student, compared.teacher, compared.answers
        embeddings = [mean_embedding(trace.returned[0], compared.real) for trace in (ours, theirs)]
        cosine = torch.cosine_similarity(embeddings[0], embeddings[1])
        sums = (
            self._layer_errors(compared),
            squared_distance(ours.outputs[-1], theirs.outputs[-1], compared.real),
            compared.real.sum(),
            answer_loss(self.kind, student, teacher),
            (student.argmax(dim=-1) == teacher.argmax(dim=-1)).sum(),
            len(teacher),
        )
        return cosine, *(torch.ones_like(cosine) * total / len(cosine) for total in sums)

    def metrics(self, cosine: np.ndarray, *sums: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        layers, distance, tokens, answered, agreed, count = (total.sum(dtype="float64") for total in sums)
        error = distance / tokens / self.constants[self._layers - 1]
        values = {"loss": layers / tokens + answered / max(1, count), "error": error, "cosine": cosine.mean()}
        if count and self.kind not in _WITHOUT_AGREEMENT:
            values["agreement"] = agreed / count
        return {name: float(value) for name, value in values.items()}
