"""How a YAML file of settings is read, and whether a name means a folder."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from linformer_kit.errors import InputError

# More than any settings have; anchors make billions of a few lines.
_MOST_VALUES = 100_000
# Settings that name files, models, and places for results and caches.
_FILES = ("train_file", "validation_file", "text", "validation_text")
_MODELS = ("model", "from_model", "tokenizer", "teacher", "student")
_PLACES = ("output_dir", "cache_dir", "data_dir")


def names_folder(name: str) -> bool:
    """Whether what stands for a model means a folder, there or not, and not an id of the hub."""
    return os.path.isdir(name) or name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1


def recorded_name(model: str) -> str:
    """A model as it stands in results: a folder without those above it, which mean nothing on another machine."""
    return Path(model).name if Path(model).exists() else model


def names_only(files: Any) -> Any:
    """Files without their folders, which mean nothing on another machine; all else as it is."""
    if isinstance(files, str):
        return Path(files).name
    return [names_only(each) for each in files] if isinstance(files, list) else files


def portable(settings: Any) -> dict[str, Any]:
    """Settings as they stand in results: files and models by their names alone, and no places of this machine."""
    named = dataclasses.asdict(settings)
    for name in _FILES:
        if name in named:
            named[name] = names_only(named[name])
    for name in _MODELS:
        if isinstance(named.get(name), str):
            named[name] = recorded_name(named[name])
    return {name: value for name, value in named.items() if name not in _PLACES}


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a file of settings, checked: the parser's own messages name no file.

    Raises:
        InputError: in one line, for a file that is missing or is no YAML of names and values.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        values = list(itertools.islice(_values(content), _MOST_VALUES + 1))
    except FileNotFoundError:
        raise InputError(f"config: expected a YAML file, got {path}, which does not exist") from None
    except RecursionError:
        raise InputError(f"{path}: expected YAML, got lists or names that nest too deeply") from None
    except Exception as error:  # the parser raises whatever comes for dates and numbers that are none
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path}:{place} expected YAML, got {problem}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected YAML of names and values, got {type(content).__name__}")
    if len(values) > _MOST_VALUES:
        raise InputError(f"{path}: expected at most {_MOST_VALUES:,} values, got more, by anchors perhaps")
    for name in itertools.chain.from_iterable(value for value in values if isinstance(value, dict)):
        if not isinstance(name, str) or name.startswith("__"):  # the parser takes `__path__` as a note to itself
            raise InputError(f"{path}: expected names of settings, got {name!r}")
    return content


def _values(content: Any) -> Iterator[Any]:
    """Every value at every depth; without end where an anchor holds itself."""
    yield content
    for item in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _values(item)
