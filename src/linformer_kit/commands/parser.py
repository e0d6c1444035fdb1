"""Parse arguments into typed settings: recipes, settings files and the command line, later ones overriding."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from linformer_kit._version import __version__
from linformer_kit.commands.arguments import add_settings, expanded, usage
from linformer_kit.commands.help import HelpFormatter, epilog, overview
from linformer_kit.commands.spelling import explained, normalise, readable, values_of
from linformer_kit.commands.table import COMMANDS, RECIPES, Command
from linformer_kit.errors import InputError
from linformer_kit.settings import read_yaml
from linformer_kit.settings.groups import settings_of


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """Name and settings of the command in the arguments.

    Later ones override: the recipe, each --config file, the command line.

    Raises:
        InputError: for anything that the command does not take, with a message of one line.
        SystemExit: for --help, --version and --print_config.
    """
    words = arguments[:1]
    name = "".join(words)
    command = COMMANDS.get(name)
    rest = normalise(arguments[1:], command.settings) if command else []
    configs = [_read_settings(Path(path)) for path in values_of("--config", rest)]
    recipe = ""
    recipes: dict[Path, dict[str, Any]] = {}
    if command and command.recipe:
        named = [config["recipe"] for config in configs if "recipe" in config]
        recipe = [command.recipe, *named, *values_of("--recipe", rest)][-1]
        path = _recipe_file(recipe)
        recipes = {path: _read_settings(path)}
    parser = _build_parser(name, recipes, recipe)
    try:
        namespace = parser.parse_args([*words, *rest])
    except InputError as error:
        known = [each.name for each in settings_of(command.settings)] if command else [*COMMANDS]
        raise InputError(explained(str(error), command.positionals if command else (), known)) from None
    except OverflowError as error:
        raise InputError(f"settings: expected numbers in range, got one that is too large ({error})") from None
    if command is None:
        parser.print_help()
        raise SystemExit(0)
    values = namespace[namespace.command]
    values.pop("config", None)
    return name, _instantiate(command.settings, values)


def _build_parser(name: str, recipes: dict[Path, dict[str, Any]], recipe: str) -> ArgumentParser:
    """Build the parser of all commands.

    Only the wanted command gets its settings: reading those of all commands takes longer than some commands run.
    """
    parser = _OneLineParser(
        prog="linformer",
        usage="linformer COMMAND [options]",
        description=f"Linformer: encoders with linear-time attention.\n\n{overview()}",
        epilog="`linformer COMMAND --help` shows the settings of a command, with examples.",
        version=__version__,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    # The overview lists the commands.
    subcommands = parser.add_subcommands(required=False, dest="command", description=None, help=argparse.SUPPRESS)
    for each, command in COMMANDS.items():
        child = _command_parser(name, command, recipes, recipe) if each == name else _OneLineParser()
        subcommands.add_subcommand(each, child)
    return parser


def _command_parser(name: str, command: Command, recipes: dict[Path, dict[str, Any]], recipe: str) -> ArgumentParser:
    note = f"\n\n[recipe: ...] marks the values of the recipe `{recipe}`." if command.recipe else ""
    choices = _recipe_files() if command.recipe else []
    child = _OneLineParser(
        usage=usage(name, command),
        description=f"{command.summary}.{note}",
        epilog=epilog(name, command, choices),
        default_config_files=[*recipes],
    )
    if command.recipe:
        text = "Recipe, see below, or a YAML file of settings; other arguments override it."
        text += f" [default: {command.recipe}]"
        child.add_argument("--recipe", default=command.recipe, metavar="NAME", help=text)
    child.add_argument("--config", action="config", metavar="FILE", help="YAML file of settings; may be repeated.")
    add_settings(child, command, list(recipes.values()))
    return child


class _OneLineParser(ArgumentParser):
    """A parser that raises wrong usage as an `InputError` with a message of one line."""

    def error(self, message: str, ex: Exception | None = None) -> None:  # type: ignore[override]
        raise InputError(readable(" ".join(message.split())))


def _recipe_file(name: str) -> Path:
    """The file of a recipe given by name or path."""
    built_in = RECIPES / f"{name}.yaml"
    path = built_in if built_in.exists() else Path(str(name))
    if not path.is_file():
        names = ", ".join(path.stem for path in _recipe_files())
        raise InputError(f"recipe: expected one of {names} or a YAML file, got {name!r}")
    return path


def _recipe_files() -> list[Path]:
    return sorted(RECIPES.glob("*.yaml"))


def _read_settings(path: Path) -> dict[str, Any]:
    content = read_yaml(path.expanduser())
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
        arguments[field.name] = expanded(field.name, value)
    return settings(**arguments)
