"""Evaluation: each validation item once, in order, for any number of processes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from linformer_kit.training import evaluation
from linformer_kit.training.engine import Engine
from linformer_kit.training.evaluation import measure
from linformer_kit.training.tasks.base import Task
from tests.training.conftest import small_settings


class Numbers(Task):
    """Validation items are numbers, and measured as they are, with a row of several."""

    def __init__(self, count: int) -> None:
        super().__init__(torch.nn.Linear(2, 3), None, train=[], validation=range(count), collate=self.gather)

    @staticmethod
    def gather(numbers: list[int]) -> dict[str, torch.Tensor]:
        return {"numbers": torch.tensor(numbers)}

    def measure(self, batch):
        numbers = batch["numbers"]
        return numbers, numbers[:, None] * torch.ones(1, 2, dtype=torch.bfloat16)


@pytest.mark.parametrize(("count", "processes", "workers"), [(7, 1, 2), (7, 3, 0), (2, 5, 0), (12, 2, 0)])
@pytest.mark.e2e
def test_each_validation_item_counts_once(monkeypatch, count, processes, workers):
    """In all processes together, in their order; each has equally many batches."""
    task, settings = Numbers(count), small_settings(per_device_eval_batch_size=3, dataloader_num_workers=workers)
    engine, parts = Engine(task, settings), []
    monkeypatch.setattr(evaluation, "gather_object", lambda part: (parts.append(part[0]), part)[1])
    for rank in range(processes):
        state = SimpleNamespace(process_index=rank, num_processes=processes, device=torch.device("cpu"))
        monkeypatch.setattr(evaluation, "PartialState", lambda state=state: state)
        measure(task, settings, engine)
    assert len({len(part) for part in parts}) == 1, "models in pieces need them"
    monkeypatch.setattr(evaluation, "gather_object", lambda _: parts)
    numbers, rows = measure(task, settings, engine)
    assert numbers.tolist() == list(range(count)) and rows.shape == (count, 2)
    assert rows.dtype == np.float32 and np.array_equal(rows[:, 1], numbers)


def test_no_gradient_and_the_precision_of_the_training():
    seen = []
    task = Numbers(5)
    task.measure = lambda batch: (seen.append((torch.is_grad_enabled(), task.training, torch.is_autocast_enabled("cpu"))), (batch["numbers"],))[1]  # fmt: skip
    for asked in ("true", "false"):
        settings = small_settings(bf16=asked)
        engine = Engine(task.train(), settings)
        measure(task, settings, engine)
    assert seen == [(False, False, True)] * 2 + [(False, False, False)] * 2


def test_a_wish_to_stop_ends_it():
    """Before each batch."""
    task, settings = Numbers(7), small_settings(per_device_eval_batch_size=3)
    engine = Engine(task, settings)
    for calls in range(3):
        answers = itertools.chain([0] * calls, [15])
        assert measure(task, settings, engine, lambda answers=answers: next(answers)) is None
    assert measure(task, settings, engine, lambda: 0) is not None
