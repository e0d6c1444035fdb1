"""The loss of all classifiers: by hand, and the same however an update is cut into forward passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linformer_kit import LinformerForSequenceClassification
from linformer_kit.data.inputs import LabelledItems, grouped_by_length
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.finetune import Classification, classification_loss
from linformer_kit.training.loop import Training
from tests.training.conftest import small_plan, small_settings


def test_the_loss_by_hand():
    """Of one class of several, and of several classes of a text."""
    logits, first, second = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), math.log(1 + math.exp(-2)), math.log(2)
    assert classification_loss(logits, torch.tensor([0, 1]), 5).item() == pytest.approx((first + second) / 5)
    several = classification_loss(logits[:1], torch.tensor([[1.0, 0.0]]), 2)
    assert several.item() == pytest.approx((first + second) / 2)


def test_texts_that_only_fill_a_batch_have_no_part_in_the_loss():
    """As one without them; of them alone, nothing."""
    logits = torch.randn(3, 2, requires_grad=True)
    for labels in (torch.tensor([0, 1, 1]), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])):
        filled = labels.clone()
        filled[2] = -100
        without = classification_loss(logits[:2], labels[:2], 3)
        torch.testing.assert_close(classification_loss(logits, filled, 3), without)
        alone = classification_loss(logits[2:], filled[2:], 4)
        assert alone.item() == 0 and not torch.autograd.grad(alone, logits)[0].any()


def test_an_item_that_fills_a_batch_has_no_label():
    lengths = [3, 9, 1, 4, 7]
    for labels, filler in ((1, -100), ([1.0, 0.0], [-100.0, -100.0])):
        texts = items_of([[0] * length for length in lengths], [labels] * len(lengths))
        assert texts[None] == {"input_ids": [0], "labels": filler} and texts[2]["labels"] == labels


@pytest.mark.parametrize("count", [5, 100, 800, 5000])
def test_batches_are_others_in_each_epoch_and_with_each_seed(count):
    """Of similar lengths, in no order of lengths; the longest text in the first one, a smaller batch at the end."""
    lengths = [n * 7919 % 1009 for n in range(count)]

    def batches(seed: int, epoch: int) -> list[frozenset[int]]:
        torch.manual_seed(epoch)
        order = grouped_by_length(lengths, batch_size=16, seed=seed, epoch=epoch)
        assert sorted(order) == list(range(count))
        return [frozenset(order[start : start + 16]) for start in range(0, count, 16)]

    first = batches(3, 0)
    assert batches(3, 0) == first and max(lengths[index] for index in first[0]) == max(lengths)
    for other in (batches(3, 1), batches(4, 0)):
        assert count < 16 or len({*first, *other}) > 1.8 * len(first)
    if count >= 800:
        means = [np.mean([lengths[index] for index in batch]) for batch in first]
        spreads = [np.ptp([lengths[index] for index in batch]) for batch in first]
        assert np.median(spreads) < 200, "lengths of a batch are similar"
        falls = np.mean(np.diff(means[1:]) < 0)
        assert 0.3 < falls < 0.7, "long batches are not followed by shorter ones"


def task_of(model, texts, tokenizer, **arguments: object) -> Classification:
    usual = {"texts_in_update": 4, "seed": 3, "metrics": ("accuracy",)}
    return Classification(model, tokenizer, train=texts, validation=texts, **{**usual, **arguments})


def items_of(ids, targets) -> LabelledItems:
    return LabelledItems([{"input_ids": np.array(each, np.int32)} for each in ids], np.array(targets), {})


def texts_of(targets) -> LabelledItems:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 20, (len(targets),), generator=generator).tolist()
    ids = [torch.randint(5, 281, (length,), generator=generator).tolist() for length in lengths]
    return items_of(ids, targets)


def test_the_loss_of_an_evaluation_is_of_all_texts(config, tokenizer, tmp_path):
    texts = texts_of([n % 3 for n in range(11)])
    model = LinformerForSequenceClassification(config(vocab_size=281, num_labels=3))

    def evaluated(size: int) -> dict[str, float]:
        task = task_of(model, texts, tokenizer)
        training = Training(task, small_settings(per_device_train_batch_size=size), small_plan(), tmp_path)
        return task.metrics(*training.measure())

    plain = evaluated(11)
    assert evaluated(4) == pytest.approx(plain, rel=1e-5) and set(plain) == {"loss", "accuracy"}
    items = texts_of([n % 3 for n in range(11)])
    logits = torch.cat([model(torch.tensor([item["input_ids"]])).logits for item in items])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([item["labels"] for item in items]))
    assert plain["loss"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the quick brown fox jumps over the lazy dog"] * 7, vocab_size=281, max_length=37)


def test_the_loss_of_an_update_is_that_of_its_labels(config, tokenizer):
    """Of texts without a filler, or of texts and classes."""
    model = LinformerForSequenceClassification(config(vocab_size=281, num_labels=3)).eval()
    for targets in ([0, 1, 2, 1], [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]):
        texts = texts_of(targets)
        task = task_of(model, texts, tokenizer)
        batch = dict(task.collate([task.train_items[None], *(texts[index] for index in range(4))]))
        assert int(task.labels(batch)) == torch.tensor(targets).numel()
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        expected = classification_loss(model(**inputs).logits, batch["labels"], 31)
        assert task(batch, torch.tensor(31)).item() == pytest.approx(expected.item())
