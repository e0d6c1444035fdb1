"""Evaluation: run a task's measurements on the validation sequences, split over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader

from linformer_kit.settings import TrainingSettings
from linformer_kit.training.batches import to_device
from linformer_kit.training.engine import Engine
from linformer_kit.training.tasks.base import Batch, Task


def measure(
    task: Task, settings: TrainingSettings, engine: Engine, stop: Callable[[], int] = lambda: 0
) -> tuple[np.ndarray, ...] | None:
    """Measure each validation sequence, in their order.

    Args:
        task: The task to evaluate.
        settings: Batch size and data workers.
        engine: Device and precision.
        stop: Called before each batch, in all processes; a value other than 0 aborts the evaluation.

    Returns:
        One array of `[sequences, ...]` for each tensor of `Task.measure`; None if aborted.
    """
    task.eval()
    task.begin(None)
    found: list[tuple[np.ndarray, ...]] = []
    for batch, rows in _batches(task, settings):
        if stop():
            return None
        with torch.no_grad(), engine.autocast():
            measured = task.measure(to_device(batch, engine.device))
        found.append(tuple(_array(tensor[:rows]) for tensor in measured))
    together = [batch for batches in zip(*gather_object([found]), strict=True) for batch in batches]
    return tuple(np.concatenate(parts) for parts in zip(*together, strict=True))


def _batches(task: Task, settings: TrainingSettings) -> Iterator[tuple[Batch, int]]:
    """This process's batches of validation items, and how many rows of each are counted.

    All processes have the same number of batches, which sharded models need; filler batches have 0 counted rows.
    """
    process = PartialState()
    size, items = settings.per_device_eval_batch_size, range(len(task.validation_items))
    places = [items[start : start + size] for start in range(0, len(items), size)]
    places += [range(0)] * (-len(places) % process.num_processes)
    mine = places[process.process_index :: process.num_processes]
    loader: DataLoader = DataLoader(
        task.validation_items,  # type: ignore[arg-type]
        batch_sampler=[list(rows) or [0] for rows in mine],  # type: ignore[arg-type]
        collate_fn=task.collate,
        num_workers=settings.dataloader_num_workers,
        pin_memory=process.device.type == "cuda",
    )
    for batch, rows in zip(loader, mine, strict=True):
        yield batch, len(rows)


def _array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to numpy; floats become float32, since numpy has no bfloat16."""
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
