"""Distance of answers from the teacher's, by hand for each kind of head."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from linformer_kit.training.distillation_task import answer_loss, answers, kind_of

REAL = torch.tensor([[True, True, True, False], [True, True, True, True]])
HIDDEN = torch.tensor([[False, True, False, False], [False, False, False, False]])
YES = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # of a half, where three quarters are right


def sure(*shape: int) -> torch.Tensor:
    """Scores of two classes of which the first has three quarters."""
    return torch.tensor([math.log(3.0), 0.0]).expand(*shape, 2).clone()


def check(kind, student, teacher, loss, count, hidden=HIDDEN):
    name = "last_hidden_state" if kind == "embeddings" else "logits"
    ours, theirs = (answers(kind, {name: outputs}, REAL, hidden) for outputs in (student, teacher))
    assert answer_loss(kind, ours, theirs).item() == pytest.approx(loss, abs=1e-6)
    assert answer_loss(kind, theirs, theirs).item() == pytest.approx(0, abs=1e-6)
    assert len(ours) == len(theirs) == count


def test_words_are_asked_at_hidden_tokens():
    student, teacher = torch.full((2, 4, 2), 50.0), sure(2, 4)
    student[..., 1] = 0  # wrong everywhere but there
    student[0, 1] = 0
    check("words", student, teacher, YES, 1)
    check("words", student, teacher, 0, 0, hidden=torch.zeros_like(HIDDEN))


def test_tokens_are_asked_where_they_are_real():
    student, teacher = torch.zeros(2, 4, 2), sure(2, 4)
    student[0, 3] = torch.tensor([-50.0, 50.0])  # padding
    check("tokens", student, teacher, YES, 7)


def test_a_class_of_a_text_is_no_position():
    """Also where there are as many classes as tokens."""
    student, teacher = torch.zeros(2, 4), torch.zeros(2, 4)
    teacher[:, 3] = math.log(9.0)
    shares = torch.tensor([1, 1, 1, 9]) / 12
    expected = float((shares * (shares / 0.25).log()).sum())
    check("classes", student, teacher, expected, 2)


def test_labels_are_each_a_yes_or_no():
    student, teacher = torch.zeros(2, 3), torch.full((2, 3), math.log(3.0))
    check("labels", student, teacher, YES, 6)


def test_numbers():
    check("numbers", torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [2.0]]), 5.0, 2)


def test_embeddings():
    student, teacher = torch.zeros(2, 4, 2), torch.zeros(2, 4, 2)
    student[..., 0] = teacher[0, :, 0] = teacher[1, :, 1] = 1
    teacher[0, 3] = torch.tensor([-9.0, 9.0])  # padding
    check("embeddings", student, teacher, 0.5, 2)


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("BertForMaskedLM", {}, "words"),
        ("BertForTokenClassification", {}, "tokens"),
        ("BertForSequenceClassification", {"num_labels": 3}, "classes"),
        ("BertForSequenceClassification", {"num_labels": 1}, "numbers"),
        ("BertForSequenceClassification", {"problem_type": "regression"}, "numbers"),
        ("BertForSequenceClassification", {"problem_type": "multi_label_classification"}, "labels"),
        ("BertModel", {}, "embeddings"),
    ],
)
def test_kinds(name, fields, kind):
    sizes = {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5}
    config = transformers.BertConfig(vocab_size=31, **sizes, **fields)
    assert kind_of(getattr(transformers, name)(config)) == kind
