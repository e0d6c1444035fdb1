"""Batches of one process: for training, from any position in the data, and for validation."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from torch.utils.data import DataLoader

from linformer_cli.errors import InputError
from linformer_cli.settings import TrainingSettings
from linformer_kit.files.stopping import ignore_signals
from linformer_kit.training.state import Position
from linformer_kit.training.task import Batch, Task


@dataclass(frozen=True)
class UpdateBatches:
    """The data of one update."""

    batches: list[Batch]  # one for each forward pass of this process
    sequences: int  # in the update, over all processes
    position: Position  # in the data after the update


class Batches:
    """Batches for updates, in an order that is a pure function of the task's seed and the position.

    Each global batch is split evenly over the processes, so its content does not depend on their number.

    Args:
        task: Provides items and their order.
        settings: Batch sizes and accumulation steps.

    Attributes:
        in_epoch: Forward passes in an epoch.
    """

    def __init__(self, task: Task, settings: TrainingSettings) -> None:
        process = PartialState()
        self._task = task
        self._rank, self._processes = process.process_index, process.num_processes
        self._size = settings.per_device_train_batch_size
        self._global_batch_size = self._size * self._processes
        self._accumulation = settings.gradient_accumulation_steps
        self._loading = _loading(task, settings)
        # accelerate would pad the last batch with repeated sequences; here it is padded with items without labels.
        self._multiple = self._global_batch_size if self._processes > 1 else 1
        self.in_epoch = -(-len(self._keys(0)) // self._global_batch_size)

    @property
    def updates_in_epoch(self) -> int:
        """Updates in an epoch, of which the last may have fewer forward passes."""
        return -(-self.in_epoch // self._accumulation)

    def epochs(self, position: Position) -> float:
        """Epochs done, with a fraction.

        Raises:
            InputError: for a position outside the data.
        """
        done = position.batches
        if done >= self.in_epoch:
            raise InputError(f"position: expected fewer than {self.in_epoch} batches in an epoch, got {done}")
        return position.epoch + done / self.in_epoch

    def updates(self, start: Position) -> Generator[UpdateBatches, None, None]:
        """Yield the batches of each update, without end."""
        keys: Any = self._keys_of_batches(start)
        loader = iter(DataLoader(self._task.train_items, batch_sampler=keys, **self._loading))
        in_epoch, position = self.in_epoch, start
        while True:
            count = min(self._accumulation, in_epoch - position.batches)
            batches = list(itertools.islice(loader, count))
            first, last = (self._global_batch_size * n for n in (position.batches, position.batches + count))
            done = position.batches + count
            position = Position(position.epoch + 1) if done == in_epoch else Position(position.epoch, done)
            examples = len(self._task.train_items)
            yield UpdateBatches(batches, min(last, examples) - min(first, examples), position)

    def _keys(self, epoch: int) -> list[Any]:
        return self._task.order(epoch, global_batch_size=self._global_batch_size, multiple=self._multiple)

    def _keys_of_batches(self, start: Position) -> Iterator[list[Any]]:
        """The keys of this process's part of each global batch, over all epochs."""
        for epoch in itertools.count(start.epoch):
            keys = self._keys(epoch)
            done = start.batches if epoch == start.epoch else 0
            for place in range(
                done * self._global_batch_size + self._rank * self._size, len(keys), self._global_batch_size
            ):
                yield keys[place : place + self._size]


def validation_batches(task: Task, settings: TrainingSettings) -> Iterator[tuple[Batch, int]]:
    """This process's batches of validation items, and how many rows of each are counted.

    All processes have the same number of batches, which sharded models need; filler batches have 0 counted rows.
    """
    process = PartialState()
    size, items = settings.per_device_train_batch_size, range(len(task.validation_items))
    places = [items[start : start + size] for start in range(0, len(items), size)]
    places += [range(0)] * (-len(places) % process.num_processes)
    mine = places[process.process_index :: process.num_processes]
    indices: Any = [list(rows) or [0] for rows in mine]
    loader: DataLoader = DataLoader(task.validation_items, batch_sampler=indices, **_loading(task, settings))
    for batch, rows in zip(loader, mine, strict=True):
        yield batch, len(rows)


def _loading(task: Task, settings: TrainingSettings) -> dict[str, Any]:
    """Arguments of all data loaders."""
    return {
        "num_workers": settings.dataloader_num_workers,
        "collate_fn": task.collate,
        "pin_memory": PartialState().device.type == "cuda",
        "worker_init_fn": ignore_signals,
    }


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to a device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
