"""The models for tasks: losses and their positions, gradients in all parameters, transformers' pipelines."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from linformer_kit import (
    InputError,
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.heads import labelled_positions
from tests.conftest import KINDS, fields, randomise, tokens, values_of

IDS = torch.full((2, 31), 5)


def test_logits_are_of_all_tokens_or_of_those_that_are_asked_for(config):
    """In training as in evaluation; the loss and its gradients do not change."""
    model, ids = randomise(LinformerForMaskedLM(config())), tokens(2, 31)
    labels, results = ids.masked_fill(torch.rand(2, 31) > 0.3, -100), []
    for training, positions in itertools.product((True, False), (None, labelled_positions(labels))):
        output = model.train(training)(ids, labels=labels, predicted_positions=positions)
        assert output.logits.shape == ((2, 31, 101) if positions is None else ((labels != -100).sum(), 101))
        logits = output.logits[labels != -100] if positions is None else output.logits
        results.append([output.loss, logits, *torch.autograd.grad(output.loss, list(model.parameters()))])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)


def test_nothing_to_predict_is_a_loss_of_zero(config):
    ids = tokens(2, 31)
    assert LinformerForMaskedLM(config()).train()(ids, labels=torch.full_like(ids, -100)).loss == 0


@pytest.mark.parametrize(
    ("labels", "num_labels", "problem_type"),
    [
        (torch.tensor([0, 2, 1]), 3, "single_label_classification"),
        (torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]]), 3, "multi_label_classification"),
        (torch.tensor([0.5, -1.0, 2.0]), 1, "regression"),
    ],
)
def test_classification_losses_are_those_of_transformers(config, labels, num_labels, problem_type):
    model = LinformerForSequenceClassification(config(num_labels=num_labels)).eval()
    out = model(tokens(3, 31), labels=labels)
    assert model.config.problem_type == problem_type
    if problem_type == "single_label_classification":
        expected = torch.nn.functional.cross_entropy(out.logits, labels)
    elif problem_type == "regression":
        expected = torch.nn.functional.mse_loss(out.logits[:, 0], labels)
    else:
        expected = torch.nn.functional.binary_cross_entropy_with_logits(out.logits, labels)
    torch.testing.assert_close(out.loss, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8])
def test_labels_of_any_whole_numbers(config, dtype):
    ids = tokens(2, 31)
    cases = [
        (LinformerForMaskedLM, {"labels": ids}),
        (LinformerForMaskedLM, {"labels": ids, "predicted_positions": torch.arange(7)}),
        (LinformerForTokenClassification, {"labels": (ids % 3).masked_fill(ids % 2 == 0, -100)}),
        (LinformerForSequenceClassification, {"labels": torch.tensor([2, 0])}),
        (LinformerForSequenceClassification, {"labels": torch.tensor([[1, 0, 1], [0, 0, 1]])}),
        (
            LinformerForQuestionAnswering,
            {"start_positions": torch.tensor([3, 7]), "end_positions": torch.tensor([5, 40])},
        ),
    ]
    for model_class, arguments in cases:
        model = model_class(config(num_labels=3)).eval()
        other = {name: each if name == "predicted_positions" else each.to(dtype) for name, each in arguments.items()}
        assert torch.equal(model(ids, **other).loss, model(ids, **arguments).loss)


def test_the_classifier_reads_the_first_real_token(config):
    model = randomise(LinformerForSequenceClassification(config(num_labels=3))).eval()
    ids, mask = tokens(2, 31), torch.ones(2, 31, dtype=torch.long)
    mask[:, :5] = 0
    other = ids.clone()
    other[:, :5] = tokens(2, 5)
    assert torch.equal(model(ids, mask).logits, model(other, mask).logits)
    hidden = model.linformer(ids, mask).last_hidden_state
    torch.testing.assert_close(model(ids, mask).logits, model.classifier(hidden[:, 5]))


MODELS = [
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerForQuestionAnswering,
]


@pytest.mark.parametrize(("kind", "model_class"), values_of(KINDS, MODELS[1:]))
def test_padding_leaves_the_answers(config, kind, model_class):
    model = randomise(model_class(config(num_labels=3, **fields(kind)))).eval()
    ids = tokens(2, 23)
    padded, mask = torch.full((2, 31), 1), torch.zeros(2, 31, dtype=torch.long)
    padded[:, 5:28], mask[:, 5:28] = ids, 1
    for ours, theirs in zip(model(padded, mask).to_tuple(), model(ids).to_tuple(), strict=True):
        ours = ours if model_class is LinformerForSequenceClassification else ours[:, 5:28]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_token_classification_loss_is_that_of_transformers(config):
    model = randomise(LinformerForTokenClassification(config(num_labels=3))).eval()
    ids = tokens(2, 31)
    labels = (ids % 3).masked_fill(torch.rand(2, 31) > 0.5, -100)
    out = model(ids, labels=labels)
    assert out.logits.shape == (2, 31, 3)
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten()))


def test_question_answering_loss_is_that_of_transformers(config):
    model = randomise(LinformerForQuestionAnswering(config())).eval()
    ids, start, end = tokens(3, 31), torch.tensor([3, 7, 31]), torch.tensor([5, 29, 37])
    out = model(ids, start_positions=start, end_positions=end)
    assert out.start_logits.shape == out.end_logits.shape == (3, 31)
    # The third answer was cut off with the end of its text.
    expected = sum(
        torch.nn.functional.cross_entropy(logits[:2], positions[:2])
        for logits, positions in ((out.start_logits, start), (out.end_logits, end))
    )
    torch.testing.assert_close(out.loss, expected / 2)
    torch.testing.assert_close(model(ids, start_positions=start[:, None], end_positions=end[:, None]).loss, out.loss)


REJECTED = {
    LinformerForMaskedLM: [
        ({"input_ids": IDS[:, :1].expand(2, 38)}, "expected at most max_position_embeddings 37, got"),
        ({"input_ids": IDS + 96}, "input_ids: expected ids from 0 to 100, got 101"),
        ({"input_ids": IDS[0]}, "input_ids: expected [batch, sequence], got [31]"),
        ({"input_ids": IDS.tolist()}, "input_ids: expected a tensor of int64 or int32, got list"),
        ({"position_ids": IDS[0, 0]}, "position_ids: expected [2, 31], got []"),
        ({"token_type_ids": IDS.tolist()}, "token_type_ids: expected a tensor of int64 or int32, got list"),
        ({"token_type_ids": IDS}, "expected None or only 0 because type_vocab_size is 0"),
        ({"attention_mask": [[1] * 31] * 2}, "attention_mask: expected [2, 31], 1 on real tokens and 0"),
        ({"attention_mask": IDS[:1]}, "attention_mask: expected [2, 31], 1 on real tokens"),
        ({"labels": IDS.tolist()}, "labels: expected a tensor, got 'list'"),
        ({"labels": IDS + 96}, "labels: expected ids from 0 to 100, got 101"),
        ({"inputs_embeds": IDS}, "expected exactly one of them, got both or neither"),
        ({"labels": IDS[:, 1:], "predicted_positions": IDS[0]}, "labels: expected [2, 31], got"),
    ],
    LinformerForTokenClassification: [
        ({"labels": IDS.T}, "labels: expected [2, 31], got [31, 2]"),
        ({"labels": IDS.float()}, "labels: expected whole numbers, got torch.float32"),
    ],
    LinformerForSequenceClassification: [({"predicted_positions": IDS[0]}, "predicted_positions: expected None for")],
    LinformerForQuestionAnswering: [
        ({"start_positions": [1, 2], "end_positions": [1, 2]}, "start_positions: expected a tensor, got 'list'"),
        ({"start_positions": IDS[:, 0]}, "expected both or neither, got one"),
    ],
}


@pytest.mark.parametrize(
    ("model_class", "arguments", "message"),
    [(model_class, *each) for model_class, cases in REJECTED.items() for each in cases],
)
@pytest.mark.unchecked
def test_calls_rejected(config, model_class, arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        model_class(config())(**{"input_ids": IDS, **arguments})


@pytest.mark.unchecked
def test_rejected_labels_leave_the_model_as_it_was(config):
    """Which problem it solves is inferred from labels that fit."""
    model = LinformerForSequenceClassification(config(num_labels=3)).eval()
    for shape in ([2], [3, 2]):
        with pytest.raises(InputError, match=re.escape(f"labels: expected [2, 3], got {shape}")):
            model(IDS, labels=torch.zeros(shape))
    with pytest.raises(InputError, match=r"^labels: expected ids from 0 to 2, got "):
        model(IDS, labels=IDS[:, 0])
    assert model.config.problem_type is None
    model(IDS, labels=torch.zeros(2, 3))
    assert model.config.problem_type == "multi_label_classification"
