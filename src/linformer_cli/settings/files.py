"""How settings are written: on the command line, and in results without paths of this machine."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import yaml

# Settings that name files and models, and settings of this machine only.
_FILES = ("train_file", "validation_file", "text_file")
_MODELS = ("model", "models", "from_model", "tokenizer", "teacher")
_OF_THIS_MACHINE = ("output_dir", "out", "overwrite")


def is_local_path(name: str) -> bool:
    """Whether the name of a model is a local path, existing or not, rather than an id of the hub."""
    return os.path.isdir(name) or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1


def model_label(model: str) -> str:
    """The name of a model for results: of a local path only the last component, since paths differ by machine."""
    return Path(model).name if Path(model).exists() else model


def names_only(files: Any) -> Any:
    """File names without their folders, since paths differ by machine; other values unchanged."""
    if isinstance(files, str):
        return Path(files).name
    return [names_only(each) for each in files] if isinstance(files, list) else files


def without_local_paths(settings: Any) -> dict[str, Any]:
    """A dataclass of settings for results, without paths of this machine: files and models by name, no folders."""
    values = settings if isinstance(settings, dict) else dataclasses.asdict(settings)
    return {name: _recorded(name, value) for name, value in values.items() if name not in _OF_THIS_MACHINE}


def _recorded(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return without_local_paths(value)
    if name in _FILES:
        return names_only(value)
    if name not in _MODELS or value is None:
        return value
    return [model_label(each) for each in value] if isinstance(value, list) else model_label(value)


def flat(settings: dict[str, Any], start: str = "") -> dict[str, Any]:
    """Nested settings by their names with dots."""
    by_name: dict[str, Any] = {}
    for name, value in settings.items():
        by_name |= flat(value, f"{start}{name}.") if isinstance(value, dict) else {f"{start}{name}": value}
    return by_name


def as_text(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return " ".join(map(as_text, value)) or "none"
    if isinstance(value, str | float):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]
