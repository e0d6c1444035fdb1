"""How results record settings: without paths of this machine."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from linformer_cli.settings.declare import settings_of

_OF_THIS_MACHINE = ("output_dir", "out")


def is_local_path(name: str) -> bool:
    """Whether the name of a model is a local path, existing or not, rather than an id of the hub."""
    return os.path.exists(name) or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1


def model_label(model: str) -> str:
    """The name of a model for results: of a local path only the last component, since paths differ by machine."""
    return Path(model).name if Path(model).exists() else model


def names_only(files: Any) -> Any:
    """File names without their folders, since paths differ by machine; other values unchanged."""
    if isinstance(files, str):
        return Path(files).name
    return [names_only(each) for each in files] if isinstance(files, list) else files


def without_local_paths(settings: Any) -> dict[str, Any]:
    """Settings for results, without paths of this machine: files, folders and models by name, and no outputs."""
    kinds = {each.name: each.metavar for each in settings_of(type(settings))}
    values = dataclasses.asdict(settings).items()
    return {name: _recorded(value, kinds.get(name)) for name, value in values if name not in _OF_THIS_MACHINE}


def _recorded(value: Any, kind: str | None) -> Any:
    if isinstance(value, list):
        return [_recorded(each, kind) for each in value]
    if value is None or kind not in ("FILE", "FOLDER", "MODEL"):
        return value
    return Path(value).name if kind == "FILE" else model_label(value)


def flat(settings: dict[str, Any], start: str = "") -> dict[str, Any]:
    """Nested settings by their names with dots."""
    by_name: dict[str, Any] = {}
    for name, value in settings.items():
        by_name |= flat(value, f"{start}{name}.") if isinstance(value, dict) else {f"{start}{name}": value}
    return by_name
