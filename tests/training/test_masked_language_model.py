"""Masked language modelling: an exact loss over masked tokens only, and new masks in each epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import default_collate

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.training import pretrain
from tests.training.conftest import TRAIN


def test_every_epoch_has_its_own_order_and_masks(build):
    training = build(updates=10, evaluate_every=99)
    seen: list[torch.Tensor] = []
    forward = training.task.forward
    training.task.forward = lambda batch, labels: (seen.append(batch["labels"]), forward(batch, labels))[1]
    training.run()
    rows = torch.cat(seen)
    assert len(rows) == 2 * TRAIN
    first, second = ({tuple(row.tolist()) for row in part} for part in (rows[:TRAIN], rows[TRAIN:]))
    assert len(first) == TRAIN and not first & second
    items = training.task.train_items
    assert second == {tuple(items[(1, index)]["labels"].tolist()) for index in range(TRAIN)}


@pytest.mark.parametrize("count", [0, 256, 257, 600])
def test_the_number_of_predicted_tokens_is_a_multiple(count):
    labels = torch.full((3, 200), IGNORED_LABEL)
    chosen = torch.randperm(600)[:count]
    labels.view(-1)[chosen] = 5
    positions = pretrain._predicted_positions(labels)
    assert len(positions) == min(600, -(-count // 256) * 256)
    assert torch.equal(positions[:count], chosen.sort().values) and len(set(positions.tolist())) == len(positions)


def test_the_other_tokens_add_nothing(masked, monkeypatch):
    task = masked({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    task.model.double()
    batch = default_collate([task.train_items[index] for index in range(5)])
    results = []
    for multiple in (1, 64):
        monkeypatch.setattr(pretrain, "_PREDICTED", multiple)
        loss = task(batch, torch.tensor(1000))
        results.append([loss, *torch.autograd.grad(loss, [*task.model.parameters()])])
    for exact, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, exact, rtol=1e-10, atol=1e-12)


def test_sums_are_those_of_the_model(masked):
    task = masked().eval()
    batch = default_collate([task.validation_items[index] for index in range(3)])
    batch["labels"][1] = IGNORED_LABEL
    (sums, counts), labels = task.measure(batch), batch["labels"]
    assert counts.tolist() == (labels != IGNORED_LABEL).sum(dim=1).tolist() and counts[1] == 0
    torch.testing.assert_close(sums.sum() / counts.sum(), task.model(**batch).loss)
