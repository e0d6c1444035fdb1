"""Tasks: an exact loss, the same however an update is cut; new masks in each epoch; batches from any start on."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.utils.data import Dataset, default_collate

from linformer_kit import InputError, LinformerForSequenceClassification
from linformer_kit.data.inputs import LabelledItems, PieceCollator, grouped_by_length
from linformer_kit.data.packing import shuffled_blocks
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training import pretrain
from linformer_kit.training.finetune import Classification, balanced_weights, classification_loss
from linformer_kit.training.state import Position
from linformer_kit.training.task import Batches, Task
from tests.training.conftest import TRAIN, begun, small_plan, small_settings

FILLER = (-1, -1)


class Echo(Dataset):
    """Items that are their own keys."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: object) -> object:
        return key


def collate(keys: list) -> dict[str, torch.Tensor]:
    """Epoch and index of each."""
    return {
        "keys": torch.tensor([key if isinstance(key, tuple) else FILLER if key is None else (0, key) for key in keys])
    }


class EchoTask(Task):
    def order(self, epoch: int, update_size: int) -> list:
        return shuffled_blocks(len(self.train_items), seed=3, epoch=epoch)


def echo(count: int = TRAIN, validation: int = 7) -> EchoTask:
    return EchoTask(None, None, train=Echo(count), validation=Echo(validation), collate=collate)


@pytest.fixture
def process(monkeypatch):
    """Makes this process one of several."""

    def become(rank: int, count: int) -> None:
        state = SimpleNamespace(process_index=rank, num_processes=count, device=torch.device("cpu"))
        monkeypatch.setattr("linformer_kit.training.task.PartialState", lambda: state)

    return become


def take(task: Task, count: int, start: Position | None = None, **fields: int) -> list:
    """Rows of each forward pass of so many updates, the sequences that count, and where each ends."""
    updates = Batches(task, small_settings(**fields)).updates(start or Position())
    found = []
    for update in itertools.islice(updates, count):
        rows = [next(iter(batch.values())).tolist() for batch in update.batches]
        found.append((rows, update.sequences, update.position))
    updates.close()
    return found


@pytest.mark.parametrize("processes", [1, 2])
def test_an_epoch_ends_with_what_is_left(process, processes):
    """19 sequences in passes of 4, two in an update: the last has one pass of 3, and then a new epoch begins."""
    fields = {"per_device_train_batch_size": 4 // processes, "gradient_accumulation_steps": 2}
    process(0, processes)
    found = take(echo(), 7, **fields)
    assert [sequences for _, sequences, _ in found] == [8, 8, 3, 8, 8, 3, 8]
    assert [position for _, _, position in found] == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0), (2, 2)]
    assert [len(rows) for rows, _, _ in found] == [2, 2, 1, 2, 2, 1, 2]
    batches = Batches(echo(), small_settings(**fields))
    assert (batches.in_epoch, batches.updates_in_epoch) == (5, 3)
    assert [batches.epochs(position) for _, _, position in found[:4]] == [0.4, 0.8, 1.0, 1.4]


def test_processes_have_equally_many_items_and_none_twice(process):
    """What fills the last pass has no labels."""
    rows = []
    for rank in range(3):
        process(rank, 3)
        mine = [row for passes, *_ in take(echo(), 4, per_device_train_batch_size=2) for part in passes for row in part]
        rows += map(tuple, mine)
        assert len(mine) == 8
    assert rows.count(FILLER) == 5 and len(set(rows)) == TRAIN + 1


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (2, 2)])
def test_the_rest_is_the_same_from_any_place_on(process, accumulation, processes):
    process(processes - 1, processes)
    whole = take(echo(), 13, gradient_accumulation_steps=accumulation)
    for done in range(1, 13):
        start = whole[done - 1][2]
        assert take(echo(), 13 - done, start, gradient_accumulation_steps=accumulation) == whole[done:]


@pytest.mark.parametrize("batches", [5, 2**62])
def test_a_place_that_is_not_in_the_data_is_rejected(process, batches):
    """Of a checkpoint of other data, or of other sizes."""
    process(0, 1)
    message = f"position: expected fewer than 5 batches in an epoch, got {batches}"
    with pytest.raises(InputError, match=f"^{message}$"):
        Batches(echo(), small_settings()).epochs(Position(1, batches))


def test_every_epoch_has_its_own_order_and_masks(build):
    training = build(updates=10, evaluate_every=99)
    seen: list[torch.Tensor] = []
    forward = training.task.forward
    training.task.forward = lambda batch, labels: (seen.append(batch["labels"]), forward(batch, labels))[1]
    training.loop()
    rows = torch.cat(seen)
    assert len(rows) == 2 * TRAIN
    first, second = ({tuple(row.tolist()) for row in part} for part in (rows[:TRAIN], rows[TRAIN:]))
    assert len(first) == TRAIN and not first & second
    items = training.task.train_items
    assert second == {tuple(items[(1, index)]["labels"].tolist()) for index in range(TRAIN)}


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


def test_the_loss_by_hand():
    """Of one class of several, and of several classes of a text."""
    logits, first, second = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), math.log(1 + math.exp(-2)), math.log(2)
    assert classification_loss(logits, torch.tensor([0, 1]), 5).item() == pytest.approx((first + second) / 5)
    several = classification_loss(logits[:1], torch.tensor([[1.0, 0.0]]), 2)
    assert several.item() == pytest.approx((first + second) / 2)
    weights = torch.tensor([3.0, 0.5])
    weighted = classification_loss(logits, torch.tensor([0, 1]), 5, weights).item()
    assert weighted == pytest.approx((3 * first + 0.5 * second) / 5)
    weighted = classification_loss(logits[:1], torch.tensor([[1.0, 0.0]]), 2, weights).item()
    assert weighted == pytest.approx((3 * first + second) / 2)


def test_balanced_weights_of_classes():
    """As in scikit-learn, also where a class of the model has no text; of several classes of a text, noes by yeses."""
    targets = np.array([0, 2, 2, 2, 2, 2])
    expected = compute_class_weight("balanced", classes=np.array([0, 2]), y=targets)
    assert balanced_weights(np.array([1, 0, 5]), targets)[[0, 2]].tolist() == pytest.approx(expected.tolist())
    several = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert balanced_weights(np.array([1, 0, 4]), several).tolist() == [3.0, 3.0, 0.25]


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
    return LabelledItems([[{"input_ids": np.array(each, np.int32)}] for each in ids], np.array(targets), {})


def texts_of(targets) -> LabelledItems:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 20, (len(targets),), generator=generator).tolist()
    ids = [torch.randint(5, 281, (length,), generator=generator).tolist() for length in lengths]
    return items_of(ids, targets)


@pytest.mark.parametrize("targets", [[2, 0, 1], [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
@pytest.mark.parametrize("in_pass", [2, None], ids=["recomputed", "at once"])
def test_logits_of_pieces_are_averaged_by_their_tokens(config, tokenizer, targets, in_pass, monkeypatch):
    """With the gradient of that mean, also where few pieces go through at a time."""
    model = LinformerForSequenceClassification(config(vocab_size=281, num_labels=3)).eval()
    lengths = [[11, 11, 3], [7], [11, 5]]
    pieces = [[torch.randint(5, 281, (1, length)) for length in each] for each in lengths]
    windows = [[{"input_ids": piece[0].numpy().astype(np.int32)} for piece in each] for each in pieces]
    items = LabelledItems(windows, np.array(targets), {}, [tuple(each) for each in lengths])
    assert items.lengths.tolist() == [25, 7, 16] and items.select(np.array([1, 0])).weights == [(7,), (11, 11, 3)]
    sizes, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda **inputs: sizes.append(len(inputs["input_ids"])) or forward(**inputs))
    task = task_of(model, items, tokenizer, windows_in_pass=in_pass, collate=PieceCollator(tokenizer))
    logits, labels = task.measure(task.collate([items[0], items[1], items[2]]))
    classification_loss(logits, labels, 3).backward()
    assert max(sizes) == (in_pass or 6)
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    means = [
        sum(n * forward(input_ids=piece).logits[0] for n, piece in zip(each, of_text, strict=True)) / sum(each)
        for each, of_text in zip(lengths, pieces, strict=True)
    ]
    torch.testing.assert_close(logits, torch.stack(means), rtol=0, atol=1e-5)
    classification_loss(torch.stack(means), torch.tensor(targets), 3).backward()
    expected = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_loss_of_an_evaluation_is_of_all_texts(config, tokenizer, tmp_path):
    texts = texts_of([n % 3 for n in range(11)])
    model = LinformerForSequenceClassification(config(vocab_size=281, num_labels=3))

    def evaluated(size: int) -> dict[str, float]:
        task = task_of(model, texts, tokenizer)
        training = begun(task, tmp_path, small_plan(), per_device_train_batch_size=size)
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
