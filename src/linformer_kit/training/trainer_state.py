"""Where a training stands: the `trainer_state.json` of a checkpoint, of which every value is looked at before use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import TrainerState

from linformer_kit.errors import InputError, input_errors
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import TRAINER_STATE
from linformer_kit.training.state import is_count, is_number


def trainer_state(checkpoint: Path) -> TrainerState:
    """Where a checkpoint's training stands.

    Raises:
        InputError: that names the value that cannot be one.
    """
    path = checkpoint / TRAINER_STATE
    content = read_json(path)
    with input_errors(str(path)):
        state = TrainerState(**content)
    for name, (expected, fits) in _FIELDS.items():
        if not fits(value := getattr(state, name)):
            raise InputError(f"{path}: expected {expected} as {name}, got {_short(value)}")
    return state


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _is_log(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, dict) and is_count(entry.get("step")) and all(map(is_number, entry.values()))
        for entry in value
    )


def _are_callbacks(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(state, dict) for state in value.values())


_COUNT = ("a count", is_count)
_STEPS = ("1 or more", lambda value: is_count(value, 1))
_FIELDS: dict[str, Any] = {
    "epoch": ("a number of 0 or more", lambda value: is_number(value) and 0 <= value < math.inf),
    "total_flos": ("a number", is_number),
    **dict.fromkeys(("global_step", "max_steps", "num_train_epochs", "num_input_tokens_seen"), _COUNT),
    **dict.fromkeys(("logging_steps", "eval_steps", "save_steps", "train_batch_size"), _STEPS),
    "log_history": ("a list of names and numbers, each with its step", _is_log),
    "best_metric": ("a number or none", lambda value: value is None or is_number(value)),
    "best_global_step": ("a count or none", lambda value: value is None or is_count(value)),
    "best_model_checkpoint": ("a name or none", lambda value: value is None or isinstance(value, str)),
    "stateful_callbacks": ("the state of callbacks by name", _are_callbacks),
}
