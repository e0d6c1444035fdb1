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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from linformer_kit.errors import InputError

_STRUCTURE = "structure"
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
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: expected a state of training, got {type(error).__name__}: {error}") from None


def random_state() -> dict[str, Any]:
    """State of the generators of Python, numpy, torch and this process's accelerator."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Go on drawing where `random_state` stood."""
    random.setstate(state["python"])
    numbers = state["numpy"]
    key = np.asarray(numbers["state"]["key"])
    np.random.set_state({**numbers, "state": {**numbers["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


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
