"""Distance of answers from the teacher's, by hand for each kind of head."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from linformer_kit.training.tasks.answers import agreement, divergence, kind_of, output_loss

REAL = torch.tensor([[True, True, True, False], [True, True, True, True]])
HIDDEN = torch.tensor([[False, True, False, False], [False, False, False, False]])
YES = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # of a half, where three quarters are right


def test_divergence_by_hand():
    student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    assert divergence(student, teacher).item() == pytest.approx(YES)
    assert divergence(teacher, teacher).item() == pytest.approx(0)


def sure(*shape: int) -> torch.Tensor:
    """Scores of two classes of which the first has three quarters."""
    return torch.tensor([math.log(3.0), 0.0]).expand(*shape, 2).clone()


def check(kind, student, teacher, loss, answers):
    found = output_loss(kind, student, teacher, REAL, HIDDEN)
    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert agreement(kind, student, teacher, REAL, HIDDEN) == answers


def test_words_are_asked_at_hidden_tokens():
    student, teacher = torch.full((2, 4, 2), 50.0), sure(2, 4)
    student[..., 1] = 0  # wrong everywhere but there
    student[0, 1] = 0
    check("words", {"logits": student}, {"logits": teacher}, YES, (1, 1))
    nothing = torch.zeros_like(HIDDEN)
    assert output_loss("words", {"logits": student}, {"logits": teacher}, REAL, nothing) == 0


def test_tokens_are_asked_where_they_are_real():
    student, teacher = torch.zeros(2, 4, 2), sure(2, 4)
    student[0, 3] = torch.tensor([-50.0, 50.0])  # padding
    check("tokens", {"logits": student}, {"logits": teacher}, YES, (7, 7))


def test_a_class_of_a_text_is_no_position():
    """Also where there are as many classes as tokens."""
    student, teacher = torch.zeros(2, 4), torch.zeros(2, 4)
    teacher[:, 3] = math.log(9.0)
    shares = torch.tensor([1, 1, 1, 9]) / 12
    expected = float((shares * (shares / 0.25).log()).sum())
    check("classes", {"logits": student}, {"logits": teacher}, expected, (0, 2))


def test_positions_are_those_of_real_tokens():
    outputs = {"start_logits": torch.zeros(2, 4), "end_logits": torch.zeros(2, 4)}
    teacher = {name: scores.clone() for name, scores in outputs.items()}
    teacher["start_logits"][0, 3] = 50.0  # padding
    outputs["end_logits"][0, 3] = 50.0
    check("positions", outputs, teacher, 0.0, (4, 4))
    teacher["end_logits"][1, 2] = math.log(9.0)
    shares = torch.tensor([1, 1, 9, 1]) / 12
    expected = float((shares * (shares / 0.25).log()).sum()) / 4  # of two texts, and of two ends
    check("positions", outputs, teacher, expected, (3, 4))


def test_labels_are_each_a_yes_or_no():
    student, teacher = torch.zeros(2, 3), torch.full((2, 3), math.log(3.0))
    check("labels", {"logits": student}, {"logits": teacher}, YES, (6, 6))
    opposite = torch.full((2, 3), -5.0)
    assert output_loss("labels", {"logits": opposite}, {"logits": -opposite}, REAL, HIDDEN) > 4
    assert agreement("labels", {"logits": opposite}, {"logits": -opposite}, REAL, HIDDEN) == (0, 6)


def test_numbers():
    check("numbers", {"logits": torch.tensor([[0.0], [1.0]])}, {"logits": torch.tensor([[3.0], [2.0]])}, 5.0, (0, 0))


def test_embeddings():
    student, teacher = torch.zeros(2, 4, 2), torch.zeros(2, 4, 2)
    student[..., 0] = teacher[0, :, 0] = teacher[1, :, 1] = 1
    teacher[0, 3] = torch.tensor([-9.0, 9.0])  # padding
    check("embeddings", {"last_hidden_state": student}, {"last_hidden_state": teacher}, 0.5, (0, 0))


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("BertForMaskedLM", {}, "words"),
        ("BertForTokenClassification", {}, "tokens"),
        ("BertForQuestionAnswering", {}, "positions"),
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
