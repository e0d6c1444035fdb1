"""Parse arguments into typed settings: recipes, settings files and the command line, later ones overriding."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from docstring_parser import parse as docstring
from jsonargparse import ArgumentParser, Namespace

from linformer_kit._version import __version__
from linformer_kit.commands.spelling import normalise, readable, values_of
from linformer_kit.commands.table import COMMANDS, GROUPS, RECIPES, Command
from linformer_kit.errors import InputError
from linformer_kit.settings import read_yaml

_COMMON_RECIPE = "_common.yaml"


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """Name and settings of the command in the arguments.

    Later ones override: the common part of the command's recipes, the recipe, each --config file, the command line.

    Raises:
        InputError: for anything that the command does not take, with a message of one line.
        SystemExit: for --help, --version and --print_config.
    """
    group = arguments[0] if arguments and arguments[0] in GROUPS else None
    words = arguments[bool(group) : 1 + bool(group)]
    command = COMMANDS.get(" ".join([group, *words] if group else words))
    rest = normalise(arguments[len(words) + bool(group) :], command.settings) if command else []
    configs = [_read_settings(Path(path)) for path in values_of("--config", rest)]
    recipes: list[Path] = []
    if command and command.recipe:
        named = [config["recipe"] for config in configs if "recipe" in config]
        folder = RECIPES / command.recipes
        recipe = _recipe_file([command.recipe, *named, *values_of("--recipe", rest)][-1], folder)
        recipes = [*folder.glob(_COMMON_RECIPE), recipe]
        for path in recipes:
            _read_settings(path)
    parser = _build_parser(group, command, recipes)
    try:
        namespace = parser.parse_args([*words, *rest])
    except OverflowError as error:
        raise InputError(f"settings: expected numbers in range, got one that is too large ({error})") from None
    if command is None:
        parser.print_help()
        raise SystemExit(0)
    values = namespace[namespace.command]
    values.pop("config", None)
    return " ".join([group, *words] if group else words), _instantiate(command.settings, values)


def _build_parser(group: str | None, wanted: Command | None, recipes: list[Path]) -> ArgumentParser:
    """Build the parser of a group's commands, or of all other commands and the names of the groups.

    Only the wanted command gets its settings: reading those of all commands takes longer than some commands run.
    """
    parser = _OneLineParser(
        prog=f"linformer {group}" if group else "linformer",
        description=f"{GROUPS[group]}."
        if group
        else "Linformer: pretrain, use, study and measure encoders with linear-time attention.",
        version=__version__,
        allow_abbrev=False,
    )
    subcommands = parser.add_subcommands(required=False, dest="command")
    for name, command in COMMANDS.items():
        *owner, last = name.split()
        if owner == ([group] if group else []):
            child = _command_parser(command, recipes) if command is wanted else _OneLineParser()
            subcommands.add_subcommand(last, child, help=f"{command.summary}.")
    for name, summary in GROUPS.items() if group is None else ():
        subcommands.add_subcommand(name, _OneLineParser(), help=f"{summary}; `linformer {name}` lists its commands.")
    return parser


def _command_parser(command: Command, recipes: list[Path]) -> ArgumentParser:
    defaults: list[str | os.PathLike[Any]] = [*recipes] if command.recipe else []
    child = _OneLineParser(description=f"{command.summary}.", default_config_files=defaults)
    child.add_argument("--config", action="config", help="YAML file of settings; may be repeated.")
    if command.recipe:
        child.add_argument(
            "--recipe",
            default=command.recipe,
            help=f"Recipe ({_recipe_names(RECIPES / command.recipes)}) or YAML file; all other arguments override it.",
        )
    help_texts = {
        param.arg_name: param.description
        for kind in reversed(command.settings.__mro__)
        for param in docstring(kind.__doc__ or "").params
    }
    for positional in command.positionals:
        child.add_argument(positional, type=str, help=help_texts[positional])
    child.add_class_arguments(command.settings, None, skip=set(command.positionals))
    return child


class _OneLineParser(ArgumentParser):
    """A parser that raises wrong usage as an `InputError` with a message of one line."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # type: ignore[override]
        raise InputError(readable(" ".join(message.split())))


def _recipe_file(name: str, recipes: Path) -> Path:
    """The file of a recipe given by name or path."""
    built_in = recipes / f"{name}.yaml"
    path = built_in if built_in.exists() else Path(str(name))
    if not path.is_file():
        raise InputError(f"recipe: expected one of {_recipe_names(recipes)} or a YAML file, got {name!r}")
    return path


def _recipe_names(recipes: Path) -> str:
    return ", ".join(sorted(path.stem for path in recipes.glob("*.yaml") if path.name != _COMMON_RECIPE))


def _read_settings(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if "config" in content:
        raise InputError(f"{path}: expected settings, got config, which only the command line takes")
    return content


def _instantiate(settings: Any, values: Namespace) -> Any:
    """Build the settings dataclass, with nested ones, from parsed values."""
    hints: dict[str, Any] = get_type_hints(settings)
    arguments = {}
    for field in dataclasses.fields(settings):
        value = values[field.name]
        nested = hints[field.name]
        if dataclasses.is_dataclass(nested):
            if not isinstance(value, Namespace):
                raise InputError(f"{field.name}: expected settings by name, got {value!r}")
            value = _instantiate(nested, value)
        arguments[field.name] = value
    return settings(**arguments)
