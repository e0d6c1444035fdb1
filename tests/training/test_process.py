"""What a training sets for its process: generators and the device."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from accelerate import PartialState

from linformer_kit.report import environment
from linformer_kit.training.process import callers_random_state, seed_generators, start_processes


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def drawn(*numbers: int) -> tuple[float, float, float]:
    seed_generators(*numbers)
    return draw()


def test_equal_numbers_give_equal_streams_and_others_give_others():
    seeds = [(5, 0, 0, 0), (5, 1, 0, 0), (5, 0, 1, 0), (5, 0, 0, 1), (6, 0, 0, 0), (0, 5, 0, 0)]
    found = [drawn(*numbers) for numbers in seeds]
    assert found == [drawn(*numbers) for numbers in seeds]
    for streams in zip(*found, strict=True):
        assert len(set(streams)) == len(seeds)


def test_a_caller_draws_what_it_would_have_drawn():
    """Also after an error, and with the second half of a pair of Gaussian numbers that waits."""
    expected = None
    for inside in (False, True):
        drawn(3)
        random.gauss(0, 1), np.random.randn()
        if inside:
            with pytest.raises(ZeroDivisionError), callers_random_state():
                drawn(7)
                raise ZeroDivisionError
        found = (random.gauss(0, 1), np.random.randn(), *draw())
        assert found == (expected or found)
        expected = found


def test_a_later_training_has_the_device_of_its_own_settings(monkeypatch):
    """Accelerate keeps that of the first one; `meta` stands for an accelerator."""
    monkeypatch.setattr(environment, "best_device", lambda: torch.device("meta"))
    devices = [start_processes(name, timeout=5).device.type for name in ("cpu", None, "cpu")]
    assert devices == ["cpu", "meta", "cpu"] and PartialState().device.type == "cpu"
