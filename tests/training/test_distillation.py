"""Losses of distillation: errors, answers, and which layer learns from which."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import transformers

from linformer_kit import linearize
from linformer_kit.training.distillation_task import (
    Distillation,
    Spread,
    answer_loss,
    answers,
    kind_of,
    squared_distance,
    two_schedules,
)
from tests.families import FAMILIES, build, example


def test_relative_error_is_one_for_the_mean_and_zero_for_the_teacher():
    torch.manual_seed(0)
    teacher, real = torch.randn(3, 5, 7), torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]).bool()
    mean = teacher[real].mean(dim=0).expand_as(teacher)
    for student, expected in ((teacher, 0.0), (mean, 1.0)):
        student = torch.where(real[..., None], student, 1e4)
        spread = Spread()
        for part in (teacher[:1][real[:1]], teacher[1:][real[1:]]):
            spread.add(part)
        distance = squared_distance(student, teacher, real).item() / int(real.sum())
        assert distance / spread.value == pytest.approx(expected, abs=1e-6)


def test_each_part_has_a_warm_up_and_falls_to_zero():
    shares = list(map(two_schedules(8, updates=20, warmup=3, joint=0.5), range(21)))
    assert shares[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and shares[7] == pytest.approx(0.2)
    assert shares[8:12] == pytest.approx([0.125, 0.25, 0.375, 0.5]) and shares[19] == pytest.approx(0.5 / 9)
    assert shares[20] == 0
    assert max(shares[:8]) == 1 and max(shares[8:]) == 0.5
    whole = list(map(two_schedules(0, updates=4, warmup=9, joint=1.0), range(4)))
    assert whole == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5])  # a warm-up of half of it at most


@pytest.fixture(scope="module")
def pair():
    """A teacher of transformers and its student."""
    torch.manual_seed(0)
    return build(FAMILIES["bert"]), linearize(build(FAMILIES["bert"]), 7)


def task_of(pair, tokenizer, **fields: object) -> Distillation:
    teacher, student = pair
    usual = {"train": [None] * 11, "validation": [{"input_ids": list(range(5, 18))}], "seed": 3, "layerwise_steps": 5}
    task = Distillation(student, tokenizer, teacher=teacher, **{**usual, **fields})
    task.constants = task.measure_constants(torch.device("cpu"))
    return task


def test_layers_learn_alone_in_the_first_updates(pair, words):
    """Evaluation has the whole student, whatever the update."""
    task = task_of(pair, words)
    batch = example(pair[0], 31)

    def loss(update: int | None) -> float:
        task.begin(update)
        return task(batch, task.labels(batch)).item()

    alone, still_alone, together, evaluated = (loss(update) for update in (0, 4, 5, None))
    assert alone == still_alone != together == evaluated
    task.begin(0)
    measured = task.metrics(*(tensor.detach().numpy() for tensor in task.measure(batch)))
    assert measured["loss"] == pytest.approx(together)


def test_the_teacher_learns_nothing_and_nothing_has_dropout(pair, words):
    task = task_of(pair, words).train()
    assert not any(module.training for module in task.modules())
    batch = example(pair[0], 31)
    task(batch, task.labels(batch)).backward()
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in pair[0].parameters())
    assert any(parameter.grad is not None for parameter in task.model.parameters())
    task.model.zero_grad()


@pytest.mark.parametrize(
    ("name", "fields"),
    [("BertForMaskedLM", {}), ("BertForTokenClassification", {}), ("BertForSequenceClassification", {"num_labels": 3}),
     ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
     ("BertForSequenceClassification", {"num_labels": 2, "problem_type": "regression"}), ("BertModel", {})],
)  # fmt: skip
def test_a_batch_in_parts_has_the_same_loss_and_metrics(words, name, fields):
    """With texts of unequal lengths and numbers of answers, and other kinds of answers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 5}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=23, **sizes, **fields)
    teacher = getattr(transformers, name)(config).eval()
    items = [{"input_ids": torch.randint(5, 99, (length,)).tolist()} for length in (23, 7, 11, 5)]
    for item in items[:3]:
        item["input_ids"][2:4] = [words.mask_token_id] * 2
    student = linearize(copy.deepcopy(teacher), 5, sliding_window=0)
    task = task_of((teacher, student), words, validation=items, layerwise_steps=0)
    whole = task.collate(items)
    counts = task.labels(whole)
    task.begin(0)
    for places in ([[0], [1], [2], [3]], [[0, 1, 2], [3]]):
        parts = [task.collate([items[place] for place in part]) for part in places]
        assert torch.equal(sum(task.labels(part) for part in parts), counts)
        loss = sum(task(part, counts).item() for part in parts)
        assert loss == pytest.approx(task(whole, counts).item(), rel=1e-5)
        measured = (torch.cat(each).detach().numpy() for each in zip(*map(task.measure, parts), strict=True))
        expected = task.metrics(*(each.detach().numpy() for each in task.measure(whole)))
        assert task.metrics(*measured) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["modernbert", "bert"])
@pytest.mark.parametrize("piece_length", [None, 13])
def test_the_cosine_is_of_what_the_encoder_returns(words, name, piece_length):
    """Of a mean of the last hidden states, which ModernBERT has behind a final norm."""
    torch.manual_seed(0)
    teacher = build(FAMILIES[name])
    if name == "modernbert":
        torch.nn.init.uniform_(teacher.final_norm.weight, 0.0, 3.0)
    student = linearize(copy.deepcopy(teacher), 7, sliding_window=0)
    task = task_of((teacher, student), words, piece_length=piece_length)
    ids = torch.randint(5, 99, (1, 25))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    ends = [0] if piece_length is None else [0, 8, 16]  # 23 tokens between the first and the last one
    with torch.no_grad():
        measured = task.metrics(*(each.numpy() for each in task.measure(inputs)))
        ours = student(input_ids=ids).last_hidden_state.mean(dim=1)
        read = []
        for start, end in zip(ends, [*ends[1:], 23], strict=True):
            piece = torch.cat([ids[:, :1], ids[:, start + 1 : end + 1], ids[:, -1:]], dim=1)
            states = teacher(input_ids=piece).last_hidden_state
            read.append(states[:, (start > 0) : states.shape[1] - (end < 23)])
    theirs = torch.cat(read, dim=1).mean(dim=1)
    assert measured["cosine"] == pytest.approx(torch.cosine_similarity(ours, theirs).item(), abs=1e-6)


# What a head answers -------------------------------------------------------------------------------------------------

CLASSIFIER = "BertForSequenceClassification"
REAL = torch.tensor([[True, True, True, False], [True, True, True, True]])
HIDDEN = torch.tensor([[False, True, False, False], [False, False, False, False]])
EAST, NORTH = torch.eye(2)
SURE = math.log(3.0) * EAST  # scores of two classes of which the first has three quarters
YES = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)  # of a half, where three quarters are right
ONE_OF_FOUR = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(
    0.25 / 0.75
)  # of equal shares, where 9 : 1 : 1 : 1 are right
NUMBERS = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [2.0]]), 5.0, 2


def at(places: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """The vector at these places, and at all others what is far from any."""
    return torch.where(places[..., None], vector, torch.tensor([-50.0, 50.0]))


@pytest.mark.parametrize(
    ("name", "fields", "kind", "student", "teacher", "loss", "count"),
    [
        ("BertForMaskedLM", {}, "words", at(HIDDEN, 0 * EAST), SURE.expand(2, 4, 2), YES, 1),
        ("BertForTokenClassification", {}, "tokens", at(REAL, 0 * EAST), SURE.expand(2, 4, 2), YES, 7),
        (CLASSIFIER, {"num_labels": 3}, "classes", torch.zeros(2, 4), math.log(9.0) * torch.eye(4)[2:], ONE_OF_FOUR, 2),
        (CLASSIFIER, {"problem_type": "multi_label_classification"}, "labels", torch.zeros(2, 3), math.log(3.0) * torch.ones(2, 3), YES, 6),
        (CLASSIFIER, {"num_labels": 1}, "numbers", *NUMBERS),
        (CLASSIFIER, {"problem_type": "regression"}, "numbers", *NUMBERS),
        ("BertModel", {}, "embeddings", at(REAL, EAST), torch.stack([at(REAL, EAST)[0], NORTH.expand(4, 2)]), 0.5, 2),
    ],
)  # fmt: skip
def test_what_a_head_answers_by_hand(name, fields, kind, student, teacher, loss, count):
    """Only where tokens are hidden or real, or once for each text, also with as many classes as tokens."""
    sizes = {"hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5}
    assert kind_of(getattr(transformers, name)(transformers.BertConfig(vocab_size=31, **sizes, **fields))) == kind
    output = "last_hidden_state" if kind == "embeddings" else "logits"
    ours, theirs = (answers(kind, {output: outputs}, REAL, HIDDEN) for outputs in (student, teacher))
    assert len(ours) == len(theirs) == count
    assert answer_loss(kind, ours, theirs).item() / count == pytest.approx(loss, abs=1e-6)
    assert answer_loss(kind, theirs, theirs).item() == pytest.approx(0, abs=1e-6)
