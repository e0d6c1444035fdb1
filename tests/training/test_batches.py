"""The batches of each update: equal for any number of processes, from any start, with or without workers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import datasets
import pytest
import torch
from torch.utils.data import Dataset

from linformer_kit import InputError
from linformer_kit.data.masking import BlockMasker, shuffled_blocks
from linformer_kit.data.packing import StreamedBlocks
from linformer_kit.training import batches as training_batches
from linformer_kit.training.batches import Batches
from linformer_kit.training.state import Position
from linformer_kit.training.tasks.base import Task
from tests.training.conftest import SEQ_LEN, TRAIN, small_settings

FILLER = -1


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
    pairs = [key if isinstance(key, tuple) else (0, key) for key in keys]
    return {"keys": torch.tensor([[epoch, FILLER if index is None else index] for epoch, index in pairs])}


class EchoTask(Task):
    def order(self, epoch: int, *, together: int, multiple: int) -> list:
        return shuffled_blocks(len(self.train_items), seed=3, epoch=epoch, multiple=multiple)


def echo(count: int = TRAIN, validation: int = 7) -> EchoTask:
    return EchoTask(None, None, train=Echo(count), validation=Echo(validation), collate=collate)


@pytest.fixture
def process(monkeypatch):
    """Makes this process one of several."""

    def become(rank: int, count: int) -> None:
        state = SimpleNamespace(process_index=rank, num_processes=count, device=torch.device("cpu"))
        monkeypatch.setattr(training_batches, "PartialState", lambda: state)

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


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (2, 2)])
def test_the_rest_is_the_same_from_any_place_on(process, accumulation, processes):
    process(processes - 1, processes)
    whole = take(echo(), 13, gradient_accumulation_steps=accumulation)
    for done in range(1, 13):
        start = whole[done - 1][2]
        assert take(echo(), 13 - done, start, gradient_accumulation_steps=accumulation) == whole[done:]


@pytest.mark.parametrize("batches", [5, 2**62])
def test_a_place_that_is_not_in_the_data_is_refused(process, batches):
    """Of a checkpoint of other data, or of other sizes."""
    process(0, 1)
    message = f"position: expected fewer than 5 batches in an epoch, got {batches}"
    with pytest.raises(InputError, match=f"^{message}$"):
        Batches(echo(), small_settings()).updates(Position(1, batches))


# Streams -------------------------------------------------------------------------------------------------------------


def stream(words, folder, files: int = 3) -> Task:
    """A task on a stream of several files."""
    for number in range(files):
        lines = [f"def one_{number}_{line}(): return {number + line}" for line in range(7)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    paths = sorted(str(path) for path in folder.glob("*.txt"))
    documents = datasets.load_dataset("text", data_files=paths, split="train", streaming=True)
    read = StreamedBlocks(documents, words, BlockMasker(words, seed=3, probability=0.3), seq_len=SEQ_LEN)
    return EchoTask(None, None, train=read, validation=[], collate=torch.utils.data.default_collate)


@pytest.mark.e2e
def test_a_stream_goes_on_from_any_place(process, words, tmp_path):
    process(0, 1)
    fields = {"gradient_accumulation_steps": 2, "dataloader_num_workers": 2, "per_device_train_batch_size": 3}
    task = stream(words, tmp_path)
    updates = Batches(task, small_settings(**fields)).updates(Position())
    whole = []
    while not whole or whole[-1][2].epoch < 2:
        update = next(updates)
        whole.append(([batch["labels"].tolist() for batch in update.batches], update.sequences, update.position))
    ends = [number for number, (_, _, position) in enumerate(whole) if position.batches <= 2]
    assert ends == [0, 3, 6] and len(whole) == 7, "two whole epochs, and the beginning of a third"
    assert whole[0][0] != whole[ends[1]][0], "new masks"
    assert [sequences for _, sequences, _ in whole] == [sum(map(len, rows)) for rows, _, _ in whole]
    for done in (1, ends[1], ends[1] + 1):
        later = Batches(task, small_settings(**fields)).updates(whole[done - 1][2])
        for expected in whole[done:]:
            update = next(later)
            assert ([batch["labels"].tolist() for batch in update.batches], update.sequences, update.position) == expected  # fmt: skip


def test_an_empty_stream_is_refused(process, words, tmp_path):
    process(0, 1)
    task = stream(words, tmp_path, files=1)
    (tmp_path / "0.txt").write_text("\n")
    message = "^train_file, dataset_name: expected enough text for one sequence, got less$"
    with pytest.raises(InputError, match=message):
        next(Batches(task, small_settings()).updates(Position()))
