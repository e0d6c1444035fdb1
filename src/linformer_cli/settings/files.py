"""YAML files of settings, and the names of files and models that results record."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from linformer_cli.errors import InputError

# More than any settings have; YAML anchors can expand a few lines to billions of values.
_MOST_VALUES = 100_000
# Settings that name files and models, and settings of this machine only.
_FILES = ("train_file", "validation_file", "text_file", "data_dir")
_MODELS = ("model", "models", "from_model", "tokenizer", "teacher")
_OF_THIS_MACHINE = ("output_dir", "out", "cache_dir", "overwrite")


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


def spelled(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return " ".join(map(spelled, value)) or "none"
    if isinstance(value, str | float):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]


class _Loader(yaml.SafeLoader):
    """A loader that rejects names that stand twice in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} twice", key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read and check a YAML file of settings. Errors name the file, which the parser's own messages do not.

    Raises:
        InputError: if the file is missing or is not a YAML mapping of setting names to values.
    """
    try:
        content = _Loader(path.read_text(encoding="utf-8")).get_single_data()
        values = list(itertools.islice(_values(content), _MOST_VALUES + 1))
    except Exception as error:  # for invalid dates, numbers and nesting the parser raises errors of any type
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path}:{place} expected YAML, got {problem}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected YAML of names and values, got {type(content).__name__}")
    if len(values) > _MOST_VALUES:
        raise InputError(f"{path}: expected at most {_MOST_VALUES:,} values, got more, by anchors perhaps")
    for name in itertools.chain.from_iterable(value for value in values if isinstance(value, dict)):
        if not isinstance(name, str):
            raise InputError(f"{path}: expected names of settings, got {name!r}")
    return content


def _values(content: Any) -> Iterator[Any]:
    """Every value at every depth; infinite where an anchor contains itself."""
    yield content
    for item in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _values(item)
