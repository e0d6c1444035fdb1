"""Tasks, which are a model, its data, a loss and metrics; and the batches that one process trains and measures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import check_input
from linformer_cli.settings import TrainingSettings
from linformer_kit.files.stopping import ignore_signals
from linformer_kit.training.state import Position

Batch = dict[str, Tensor]


class Task(nn.Module):
    """What a run trains.

    Args:
        model: The model to train.
        tokenizer: Saved with the model.
        train: Training items: a data set indexed by the keys of `order`.
        validation: Validation items, measured in this order.
        seed: Seed of the order.
        collate: Turns a list of items into a batch; None: it pads tokens.

    Attributes:
        unit: Unit of speed: tokens or texts.
        uses_every_parameter: Whether each loss has a gradient for every parameter; if not, DistributedDataParallel
            searches for unused parameters in each update.
        constants: What the loss depends on besides the batch and the weights; checkpoints hold it.
    """

    unit = "texts"
    uses_every_parameter = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train: Any,
        validation: Any,
        seed: int = 0,
        collate: Callable[[list[Any]], Mapping[str, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.seed = model, tokenizer, seed
        self.train_items, self.validation_items = train, validation
        self.collate = collate or DataCollatorWithPadding(tokenizer)
        self.constants: list[float] = []

    @property
    def size(self) -> int:
        """Number of units in a sequence."""
        return 1

    def order(self, epoch: int, update_size: int) -> list[Any]:
        """Keys of the training items of an epoch, counted from 0, a pure function of the task's seed and the epoch.

        `update_size` is the number of sequences of one update over all processes. If the keys do not fill the last
        forward pass, several processes need items without labels, which have the key None.
        """
        raise NotImplementedError

    @property
    def constant_count(self) -> int:
        """Number of `constants`."""
        return 0

    def measure_constants(self, device: torch.device) -> list[float]:
        """Measure `constants`, before the first update of a training."""
        return []

    def start(self, run: Any) -> None:
        """Set weights before the first update of a training, by what the `Run` measures; all processes call it."""

    def begin(self, update: int | None) -> None:
        """Prepare for an update, by its number from 0, or with None for evaluation and saving."""

    def labels(self, batch: Batch) -> Tensor | None:
        """Number of labels in a batch, or of each kind of them; None: the loss is a mean, and not divided by any."""
        return None

    def forward(self, batch: Batch, labels: Tensor | None) -> Tensor:
        """The loss of a batch: its sum of losses, divided by `labels` of the update over all processes."""
        raise NotImplementedError

    def measure(self, batch: Batch) -> tuple[Tensor, ...]:
        """Measure each sequence of a batch, for `metrics`: tensors of `[batch, ...]`."""
        raise NotImplementedError

    def metrics(self, *measured: np.ndarray) -> dict[str, float]:
        """Metrics from the measurements of all sequences, including `loss`."""
        raise NotImplementedError


class UpdateBatches(NamedTuple):
    """The data of one update."""

    batches: list[Batch]  # one for each forward pass of this process
    sequences: int  # in the update, over all processes
    position: Position  # in the data after the update


class Batches:
    """Batches for updates, in an order that is a pure function of the task's seed and the position.

    Each global batch is split evenly over the processes, so its content does not depend on their number.

    Attributes:
        in_epoch: Forward passes in an epoch.
        updates_in_epoch: Updates in an epoch, of which the last may have fewer forward passes.
    """

    def __init__(self, task: Task, settings: TrainingSettings) -> None:
        process = PartialState()
        self._task, self._rank = task, process.process_index
        self._size, self._accumulation = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
        self._global_batch_size = self._size * process.num_processes
        self._loading = _loading(task, settings)
        self._is_padded = process.num_processes > 1
        self.in_epoch = -(-len(self._keys(0)) // self._global_batch_size)
        self.updates_in_epoch = -(-self.in_epoch // self._accumulation)

    def epochs(self, position: Position) -> float:
        """Epochs done, with a fraction; an `InputError` for a position outside the data."""
        expected = f"fewer than {self.in_epoch} batches in an epoch"
        check_input(position.batches < self.in_epoch, "position", expected, position.batches)
        return position.epoch + position.batches / self.in_epoch

    def updates(self, start: Position) -> Generator[UpdateBatches, None, None]:
        """Yield the batches of each update, without end."""
        keys: Any = self._keys_of_batches(start)
        loader = iter(DataLoader(self._task.train_items, batch_sampler=keys, **self._loading))
        in_epoch, position, examples = self.in_epoch, start, len(self._task.train_items)
        while True:
            done = min(position.batches + self._accumulation, in_epoch)
            batches = list(itertools.islice(loader, done - position.batches))
            first, last = (min(self._global_batch_size * n, examples) for n in (position.batches, done))
            position = Position(position.epoch + 1) if done == in_epoch else Position(position.epoch, done)
            yield UpdateBatches(batches, last - first, position)

    def _keys(self, epoch: int) -> list[Any]:
        keys = self._task.order(epoch, self._global_batch_size * self._accumulation)
        # accelerate would pad the last batch with repeated sequences; here it is padded with items without labels.
        return keys + [None] * (self._is_padded * (-len(keys) % self._global_batch_size))

    def _keys_of_batches(self, start: Position) -> Iterator[list[Any]]:
        """The keys of this process's part of each global batch, over all epochs."""
        first = start.batches * self._global_batch_size + self._rank * self._size
        for epoch in itertools.count(start.epoch):
            keys = self._keys(epoch)
            for place in range(first, len(keys), self._global_batch_size):
                yield keys[place : place + self._size]
            first = self._rank * self._size


def batches_in_order(task: Task, settings: TrainingSettings, items: Any) -> Iterator[tuple[Batch, int]]:
    """This process's batches of items, in their order, and how many rows of each are counted.

    All processes have the same number of batches, which sharded models need; filler batches have 0 counted rows.
    """
    process = PartialState()
    size, numbers = settings.per_device_train_batch_size, range(len(items))
    places = [numbers[start : start + size] for start in range(0, len(items), size)]
    places += [range(0)] * (-len(places) % process.num_processes)
    mine = places[process.process_index :: process.num_processes]
    indices: Any = [list(rows) or [0] for rows in mine]
    loader: DataLoader = DataLoader(items, batch_sampler=indices, **_loading(task, settings))
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


def to_array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to numpy; floats become float32, since numpy has no bfloat16."""
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
