"""Optimizers, schedules and random generators as safetensors: numbers and tensors, and no code as a pickle may hold.

One file holds a nest of dicts, lists, tuples, numbers, strings, None and tensors. The tensors are the file's; how they
hang together is JSON in its metadata.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from linformer_kit.errors import InputError, machine_failure

_STRUCTURE = "structure"
_LARGEST = 2**63 - 1
_PLAIN = (bool, int, float, str, type(None))


def save_state(state: Any, path: Path) -> None:
    """Write a nest of dicts, lists, tuples, numbers, strings, None, tensors and arrays.

    Raises:
        TypeError: for anything else in it.
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_taken_apart(state, tensors))
    save_file(tensors, path, metadata={_STRUCTURE: structure})


def load_state(path: Path) -> Any:
    """What `save_state` has written; tensors and arrays are on the CPU, arrays as tensors.

    Raises:
        InputError: for a file that holds none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return _put_together(json.loads((file.metadata() or {})[_STRUCTURE]), tensors)
    except Exception as error:  # whatever the structure makes of itself
        if machine_failure(error) is not None:
            raise
        raise InputError(f"{path}: expected a state of training, got {type(error).__name__}: {error}") from None


def random_state() -> dict[str, Any]:
    """State of the generators of Python, numpy, torch and this process's accelerator."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    for kind, module in _accelerators():
        state[kind] = module.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` stood."""
    random.setstate(state["python"])
    numbers = state["numpy"]
    key = np.asarray(numbers["state"]["key"])
    np.random.set_state({**numbers, "state": {**numbers["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    for kind, module in _accelerators():
        if kind in state:
            module.set_rng_state(state[kind])


def _accelerators() -> list[tuple[str, Any]]:
    """The kind of accelerator that is here, if any, and torch's module for it (`torch.cuda`, `torch.mps`)."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [] if device is None else [(device.type, torch.get_device_module(device))]


def is_count(value: Any, least: int = 0) -> bool:
    """Whether it is a whole number of something, and none that only a damaged file holds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def is_number(value: Any) -> bool:
    """Whether it is a number, which may be NaN, that fits in a float."""
    return isinstance(value, float) or (is_count(value, -_LARGEST))


def check_like(state: Any, own: Any, name: str) -> None:
    """Check that what was loaded can take the place of what this process has: the same names, and values of a kind.

    Args:
        state: What was loaded; names that `own` lacks are let be.
        own: What stands where it would go.
        name: Of the state, for errors.

    Raises:
        ValueError: that names the first value of another kind.
    """
    if isinstance(own, dict):
        _expect(isinstance(state, dict), name, "values by name", state)
        for key, value in own.items():
            _expect(key in state, f"{name}.{key}", "a value", None)
            check_like(state[key], value, f"{name}.{key}")
    elif isinstance(own, list | tuple):
        _expect(isinstance(state, list | tuple) and len(state) == len(own), name, f"{len(own)} values", state)
        for index, (value, fitting) in enumerate(zip(state, own, strict=True)):
            check_like(value, fitting, f"{name}.{index}")
    elif isinstance(own, Tensor):
        alike = isinstance(state, Tensor) and state.shape == own.shape
        _expect(alike and state.is_floating_point() == own.is_floating_point(), name, f"{list(own.shape)}", state)
    elif isinstance(own, bool | str):
        _expect(type(state) is type(own), name, f"a {type(own).__name__}", state)
    elif own is None:
        _expect(state is None or is_number(state), name, "a number or none", state)
    elif isinstance(own, int):
        _expect(is_count(state, -1), name, "a whole number", state)
    else:
        _expect(is_number(state), name, "a number", state)


def fitted_state(state: Any, target: Any) -> dict[str, Any]:
    """Of a loaded state what `target.load_state_dict` may take: its own names and no other.

    Raises:
        ValueError: for one that does not fit.
    """
    own = target.state_dict()
    check_like(state, own, type(target).__name__)
    return {name: state[name] for name in own}


def fitted_optimizer_state(state: Any, optimizer: Any) -> dict[str, Any]:
    """As `fitted_state`; of the options only the learning rate counts, the others are of the settings.

    Raises:
        ValueError: for one that does not fit.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's stands around it
    own = optimizer.state_dict()["param_groups"]
    check_like(state, {"state": {}, "param_groups": [{"lr": 0.0, "params": group["params"]} for group in own]}, "it")
    groups = [{**ours, "lr": theirs["lr"]} for ours, theirs in zip(own, state["param_groups"], strict=True)]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    adam = isinstance(optimizer, torch.optim.Adam)  # AdamW is one
    for index, values in state["state"].items():
        _expect(type(index) is int and 0 <= index < len(parameters), "state", "numbers of parameters", index)
        like = parameters[index]
        moments = {"step": torch.zeros(()), "exp_avg": like, "exp_avg_sq": like} if adam else {}
        check_like(values, moments, f"state.{index}")
    return {"state": state["state"], "param_groups": groups}


def _expect(condition: bool, name: str, expected: str, got: Any) -> None:
    if not condition:
        shown = f"{list(got.shape)}" if isinstance(got, Tensor) else repr(got)
        raise ValueError(f"expected {expected} as {name}, got {shown[:60]}")


def _taken_apart(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Plain values as they are, all else as a dict of one kind; tensors go to `tensors`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        pairs = [[_taken_apart(key, tensors), _taken_apart(item, tensors)] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_taken_apart(item, tensors) for item in value]}
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        raise TypeError(f"state: expected numbers, text and tensors, got {type(value).__name__}")
    name = str(len(tensors))
    tensors[name] = value.detach().cpu().clone().contiguous()  # which shares no memory, as safetensors asks
    return {"tensor": name}


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_put_together(key, tensors): _put_together(item, tensors) for key, item in content}
    items = [_put_together(item, tensors) for item in content]
    return {"list": items, "tuple": tuple(items)}[kind]
