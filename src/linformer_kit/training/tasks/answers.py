"""Distance between the outputs of student and teacher, by the kind of head.

Axes: batch, seq_len (n), embed, answers (rows), classes (words, labels, positions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

Kind = Literal["words", "tokens", "positions", "classes", "labels", "numbers", "embeddings"]

_LEAST = -1e4  # score of masked positions: probability 0, in half precision too


def kind_of(model: PreTrainedModel) -> Kind:
    """What a model predicts: words for masked tokens, classes of tokens, positions in a text, a class of a text,
    several labels of a text, or numbers; without a head, an embedding."""
    name, config = type(model).__name__, model.config
    for end, kind in _BY_CLASS.items():
        if name.endswith(end):
            return kind
    if not name.endswith("ForSequenceClassification"):
        return "embeddings"
    if config.problem_type == "multi_label_classification":
        return "labels"
    return "numbers" if config.problem_type == "regression" or config.num_labels == 1 else "classes"


_BY_CLASS: dict[str, Kind] = {
    "ForMaskedLM": "words",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "positions",
}


def divergence(
    student: Float[Tensor, "answers classes"], teacher: Float[Tensor, "answers classes"]
) -> Float[Tensor, " answers"]:
    """Kullback-Leibler divergence of the student's answers from the teacher's, in nats.

    Source: Hinton et al. 2015, section 2, at temperature 1.
    """
    ours, theirs = (logits.float().log_softmax(dim=-1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1)


def mean_embedding(
    hidden: Float[Tensor, "batch seq_len embed"], real: Bool[Tensor, "batch seq_len"]
) -> Float[Tensor, "batch embed"]:
    """Mean of the hidden states of real tokens, as in sentence embedding models."""
    each = real[..., None].float()
    return (hidden.float() * each).sum(dim=1) / each.sum(dim=1).clamp(min=1)


def output_loss(
    kind: Kind,
    student: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    real: Bool[Tensor, "batch seq_len"],
    hidden: Bool[Tensor, "batch seq_len"],
) -> Float[Tensor, ""]:
    """Mean error of the student's outputs.

    Cosine distance for embeddings; squared distance for numbers; otherwise the divergence: for labels of each label
    separately, for positions the mean of start and end.

    Args:
        kind: What the models predict.
        student: Outputs by name.
        teacher: Likewise.
        real: True at real tokens.
        hidden: True at mask tokens.
    """
    if kind == "embeddings":
        ours, theirs = (mean_embedding(outputs["last_hidden_state"], real) for outputs in (student, teacher))
        return 1 - torch.cosine_similarity(ours, theirs).mean()
    errors = []
    for ours, theirs in _rows(kind, student, teacher, real, hidden):
        if kind == "numbers":
            errors.append((ours.float() - theirs.float()).square().mean(dim=-1))
        else:
            errors.append(divergence(ours, theirs))
    # A short text may have no masked token, and so no answer.
    return torch.stack([error.sum() / max(1, len(error)) for error in errors]).mean()


def agreement(
    kind: Kind,
    student: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    real: Bool[Tensor, "batch seq_len"],
    hidden: Bool[Tensor, "batch seq_len"],
) -> tuple[int, int]:
    """Number of answers equal to the teacher's, and number of answers; 0 and 0 for numbers and embeddings.

    Args: as for `output_loss`.
    """
    if kind in ("numbers", "embeddings"):
        return 0, 0
    pairs = _rows(kind, student, teacher, real, hidden)
    agreed = sum(int((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).sum()) for ours, theirs in pairs)
    return agreed, sum(len(theirs) for _, theirs in pairs)


def _rows(
    kind: Kind, student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], real: Tensor, hidden: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Logits of student and teacher, `[answers, classes]`, for each output of the head."""
    rows: dict[Kind, Any] = {
        "words": lambda logits: logits[hidden],
        "tokens": lambda logits: logits[real],
        "positions": lambda logits: logits.masked_fill(~real, _LEAST),
        "labels": lambda logits: torch.stack([logits, torch.zeros_like(logits)], dim=-1).flatten(0, 1),  # yes or no
    }
    names = ("start_logits", "end_logits") if kind == "positions" else ("logits",)
    take = rows.get(kind, lambda logits: logits)
    return [(take(student[name]), take(teacher[name])) for name in names]
