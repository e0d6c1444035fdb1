"""Settings as arguments of a parser: their kinds of values, sentences, defaults and groups in help."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from docstring_parser import parse as docstring
from jsonargparse import ArgumentParser

from linformer_kit.commands.table import COMMANDS, Command
from linformer_kit.settings.files import spelled
from linformer_kit.settings.groups import Setting, settings_of

_VALUES = {int: "INT", float: "FLOAT", bool: "{true,false}"}
# Kinds of text, by the last word of the name.
_TEXTS = {"file": "FILE", "dir": "FOLDER", "student": "FOLDER", "column": "COLUMN", "tokenizer": "MODEL"}
_TEXTS |= {"model": "MODEL", "models": "MODEL", "teacher": "MODEL", "source": "MODEL", "output": "FILE"}
_TEXTS |= {"out": "FOLDER", "folder": "FOLDER", "card": "FOLDER", "adapter": "ADAPTER"}
_PATHS = ("FILE", "FOLDER", "MODEL", "ADAPTER")
_METAVARS = {"metric_for_best_model": "METRIC"}  # names whose last word misleads
_DEFAULT = "; default: "  # and what a setting without a value means, at the end of its sentence


def add_settings(parser: ArgumentParser, command: Command, recipe: Sequence[Mapping[str, Any]]) -> None:
    """Add all settings of a command to its parser, by group.

    Args:
        parser: Parser of the command.
        command: The command.
        recipe: Settings of its recipe, later ones overriding; for help only.
    """
    settings = settings_of(command.settings)
    by_name = {setting.name: setting for setting in settings}
    for name in command.positionals:
        parser.add_argument(name, type=by_name[name].kind, metavar=name.upper(), help=_help(by_name[name], recipe))
    hidden = [setting for setting in settings if _is_of_another_command(setting, settings)]
    listed = [setting for setting in settings if setting not in hidden and setting.name not in command.positionals]
    groups: dict[str, Any] = {}
    for setting in sorted(listed, key=lambda setting: setting.place):
        _, title = setting.place
        text = _help(setting, recipe)
        if setting.is_nested:
            groups[title] = _add_nested(parser, setting, title, text)
        else:
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            _add_option(groups[title], setting, text, recipe)
    for setting in hidden:
        if setting.is_nested:
            _add_nested(parser, setting, None, argparse.SUPPRESS)
        else:
            _add_option(parser, setting, argparse.SUPPRESS, recipe)


def expanded(name: str, value: Any) -> Any:
    """The value of a setting; of a file, folder or model, with `~` as the home directory."""
    if isinstance(value, list):
        return [expanded(name, each) for each in value]
    is_path = _TEXTS.get(name.rpartition("_")[2]) in _PATHS
    return os.path.expanduser(value) if is_path and isinstance(value, str) else value


def usage(name: str, command: Command) -> str:
    """One line: the command, what it needs, and that it has options."""
    needed = [] if command.recipe else [each for each in settings_of(command.settings) if _is_required(each)]
    words = [each.upper() for each in command.positionals]
    words += [f"--{each.name} {_value(each)}" for each in needed if each.name not in command.positionals]
    return " ".join(["linformer", name, *words, "[options]"])


@functools.cache
def sentences(owner: type) -> dict[str, str]:
    """What each setting of a dataclass does, by name, from the docstrings of it and its base classes."""
    kinds = reversed(owner.__mro__)
    params = [param for kind in kinds for param in docstring(kind.__doc__ or "").params]
    return {param.arg_name: " ".join((param.description or "").split()) for param in params}


def _add_nested(parser: ArgumentParser, setting: Setting, title: str | None, text: str) -> Any:
    """Add --NAME for a file of nested settings; return the group, in which the parser places it."""
    names = {field.name for field in dataclasses.fields(setting.kind)}
    action = parser.add_argument(f"--{setting.name}", type=setting.kind, skip=names, help=title or setting.name)
    action.help, action.metavar = text, "FILE"
    return (parser.groups or {})[setting.name]


def _add_option(group: Any, setting: Setting, text: str, recipe: Sequence[Mapping[str, Any]]) -> None:
    options = {"required": True} if _is_required(setting) else {"default": _default_of(setting)}
    metavar = "" if _is_flag(setting) and _shown(setting, recipe)[1] is False else _value(setting)
    group.add_argument(f"--{setting.name}", type=setting.kind, metavar=metavar, help=text, **options)


def _is_of_another_command(setting: Setting, settings: Sequence[Setting]) -> bool:
    """Whether a setting is in nested settings that are those of a command; the help of that command has them."""
    known = {command.settings for command in COMMANDS.values()}
    return any(
        other.kind in known and setting.name.startswith(f"{other.name}.") for other in settings if other.is_nested
    )


def _is_required(setting: Setting) -> bool:
    missing = dataclasses.MISSING
    return setting.field.default is missing and setting.field.default_factory is missing and not setting.is_nested


def _default_of(setting: Setting) -> Any:
    factory = setting.field.default_factory
    return setting.field.default if factory is dataclasses.MISSING else factory()


def _shown(setting: Setting, recipe: Sequence[Mapping[str, Any]]) -> tuple[str, Any]:
    """The value of a setting that is not given, and where it is from; MISSING without a value."""
    for content in reversed(recipe):
        value: Any = content
        for name in setting.name.split("."):
            value = value.get(name, dataclasses.MISSING) if isinstance(value, Mapping) else dataclasses.MISSING
        if value is not dataclasses.MISSING:
            return "recipe", value
    return "default", _default_of(setting)


def _help(setting: Setting, recipe: Sequence[Mapping[str, Any]]) -> str:
    """What a setting does, from the docstring of its class, and its default unless it is an unset flag."""
    text, _, unset = sentences(setting.owner)[setting.field.name].partition(_DEFAULT)
    source, value = _shown(setting, recipe)
    if setting.is_nested or (value is False and _is_flag(setting)):
        end = ""
    elif unset and not value and source == "default":
        end = f"[default: {unset.removesuffix('.')}]"
    else:
        end = "" if value in (None, dataclasses.MISSING) else f"[{source}: {spelled(value)}]"
    return f"{text.removesuffix('.')}. {end}".strip()


def _is_flag(setting: Setting) -> bool:
    """Whether --NAME means true; `spelling.py` completes only names without dots."""
    return setting.kind is bool and "." not in setting.name


def _value(setting: Setting) -> str:
    """The kind of the values of a setting: INT, `FILE ...` for a list, {a,b} for choices."""
    kinds = list(get_args(setting.kind)) if get_origin(setting.kind) in (Union, UnionType) else [setting.kind]
    name = setting.field.name
    text = _METAVARS.get(name) or _TEXTS.get(name.rpartition("_")[2], "TEXT")
    values = [_value_of(kind, text) for kind in kinds if kind is not NoneType]
    several = len(values) > 1 or "." in setting.name
    return "|".join(dict.fromkeys("LIST" if several and value.endswith("...") else value for value in values))


def _value_of(kind: Any, text: str) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    if get_origin(kind) is list:
        return f"{_value_of(get_args(kind)[0], text)} ..."
    return text if kind is str else _VALUES.get(kind, "YAML")
