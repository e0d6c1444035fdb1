"""Optimizers and random generators as safetensors: what comes back is what was there."""

from __future__ import annotations

import math
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from linformer_kit import InputError
from linformer_kit.training.state import load_state, random_state, save_state, set_random_state


def test_a_nest_of_values_comes_back(tmp_path):
    state = {
        "numbers": [1, -2.5, math.inf, True, None, "text", 2**80],
        3: (0.9, (), []),
        "numpy": np.float64(0.1),
        "nested": [{"a": {"b": (1,)}}],
    }
    save_state(state, tmp_path / "state.safetensors")
    found = load_state(tmp_path / "state.safetensors")
    assert found == state and type(found["numpy"]) is float and type(found["numbers"][3]) is bool
    assert type(found[3]) is tuple and type(found[3][1]) is tuple and type(found[3][2]) is list


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_come_back_bit_for_bit(dtype, tmp_path):
    """Of no axis, of several, without elements, not contiguous, and the same one twice."""
    tensor = torch.randn(3, 5).to(dtype)
    state = [tensor[0, 0], tensor, tensor.T, tensor[:0], tensor, math.nan]
    save_state(state, tmp_path / "state.safetensors")
    found = load_state(tmp_path / "state.safetensors")
    assert all(
        torch.equal(ours, theirs) and ours.dtype == dtype for ours, theirs in zip(found[:5], state[:5], strict=True)
    )
    assert math.isnan(found[5])


@pytest.mark.parametrize("value", [{1, 2}, object(), torch.float32, b"bytes"])
def test_anything_else_is_refused(value, tmp_path):
    with pytest.raises(TypeError, match="state: expected numbers, text and tensors, got"):
        save_state([value], tmp_path / "state.safetensors")


def test_what_is_no_state_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    for write in (lambda: path.write_bytes(b"no"), lambda: save_file({"a": torch.ones(1)}, path)):
        write()
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: expected a state of training, got "):
            load_state(path)


def test_random_generators_go_on_where_they_stood(tmp_path):
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(()).item(), random.gauss(0, 1), np.random.randn()]

    draw()  # so that the second half of a pair of Gaussian numbers waits
    save_state(random_state(), tmp_path / "state.safetensors")
    expected = draw()
    assert draw() != expected
    set_random_state(load_state(tmp_path / "state.safetensors"))
    assert draw() == expected


def test_an_optimizer_goes_on_where_it_stood(tmp_path):
    def step(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, times: int) -> None:
        for _ in range(times):
            parameter.grad = parameter.detach() * 2
            optimizer.step()

    start = torch.nn.Parameter(torch.randn(3, 5))
    first = torch.optim.AdamW([start], lr=0.1)
    step(first, start, 3)
    save_state(first.state_dict(), tmp_path / "optimizer.safetensors")
    again = torch.nn.Parameter(start.detach().clone())
    second = torch.optim.AdamW([again], lr=0.7)
    second.load_state_dict(load_state(tmp_path / "optimizer.safetensors"))
    step(first, start, 2), step(second, again, 2)
    assert torch.equal(start, again)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_the_generator_of_an_accelerator(kind, monkeypatch, tmp_path):
    """Whatever it is; dropout there draws from it."""
    generator = torch.Generator()
    module = SimpleNamespace(get_rng_state=generator.get_state, set_rng_state=generator.set_state)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch, "get_device_module", {torch.device(kind): module}.__getitem__)
    save_state(random_state(), tmp_path / "state.safetensors")
    drawn = torch.rand(3, generator=generator)
    set_random_state(load_state(tmp_path / "state.safetensors"))
    assert torch.equal(torch.rand(3, generator=generator), drawn)
