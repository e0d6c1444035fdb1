"""The batches of each update: equal for any number of processes, from any start, with or without workers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from linformer_kit import InputError
from linformer_kit.data.packing import shuffled_blocks
from linformer_kit.training.state import Position
from linformer_kit.training.task import Batches, Task
from tests.training.conftest import TRAIN, small_settings

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
    def order(self, epoch: int, global_batch_size: int) -> list:
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
