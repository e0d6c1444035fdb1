"""Parse arguments into typed settings: a recipe, files of settings and the command line, later ones overriding."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import operator
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

import yaml

from linformer_cli._version import __version__
from linformer_cli.errors import InputError
from linformer_cli.settings import TOPICS
from linformer_cli.settings.declare import COMMANDS, TITLES, Setting, as_text, settings_of, suggestion
from linformer_cli.settings.recorded import flat

RECIPES = {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.yaml"))}
_WIDTH = max(map(len, COMMANDS)) + 1
_WIDEST = 70  # characters of the name and the choices of a setting that stand in one line
_TRUTH_VALUES = ("true", "false", "yes", "no", "on", "off", "1", "0", "null")


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """Name and settings of the command in the arguments.

    Raises:
        InputError: for anything that the command does not take, with a message of one line.
        SystemExit: for --help, --version and --print_config.
    """
    name = next(iter(arguments), "--help")
    if name not in COMMANDS:
        _overview().parse_known_args([name])  # ends after --help and --version
        raise InputError(f"expected a command, got {name}{suggestion(name, COMMANDS)}; `linformer --help` lists them")
    command, program = COMMANDS[name], f"linformer {name}"
    texts = {
        "description": f"{command.summary}.\n{command.reason}",
        "epilog": f"Example:\n  {program} {command.example}".rstrip(),
    }
    return name, parse_settings(program, command.settings, arguments[1:], recipe=command.recipe, **texts)


def parse_settings(
    program: str, kind: type, arguments: Sequence[str], *, description: str, epilog: str = "", recipe: str = ""
) -> Any:
    """Settings of a class, from a command line.

    Later ones override: the recipe, each --config file, the command line.

    Args:
        program: How the program is called, for its help.
        kind: The class, declared by `settings.declare.settings`.
        arguments: The arguments of the program.
        description: What stands before the settings in the help.
        epilog: What stands behind them.
        recipe: Name of the default recipe; empty: it has none.

    Raises:
        As `parse`.
    """
    settings = {setting.name: setting for setting in settings_of(kind)}
    options = {name: setting for name, setting in settings.items() if setting.group in TITLES}  # all but those of files
    words = list(_normalised(arguments, options))
    first = _Parser()
    _add_files(first, recipe)
    files, _ = first.parse_known_args(words)
    layers = [flat(_read_yaml(Path(os.path.expanduser(path)))) for path in files.config]
    if recipe:
        layers.insert(0, flat(_read_yaml(_recipe_file(files.recipe))))
    named = {word.partition("=")[0] for word in words}
    needed = [each for each in options.values() if each.is_needed and not (recipe or each.group == TITLES[0])]
    places = [each for each in options.values() if each.group == TITLES[0] and f"--{each.name}" not in named]
    usage = [program, *map(_placeholder, places), *(f"--{each.name} {each.metavar}" for each in needed), "[options]"]
    parser = _Parser(" ".join(usage), description, epilog)
    for title in TITLES:  # shown only with settings
        group = parser.add_argument_group(title)
        for setting in (each for each in options.values() if each.group == title):
            _add_argument(group, setting, layers[0] if recipe else {}, by_place=setting in places)
    general = _add_general(parser)
    _add_files(general, recipe)
    text = "Print all settings as YAML for --config, and exit."
    general.add_argument("--print_config", action="store_true", help=text)
    parsed, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        raise InputError(f"unrecognized arguments: {' '.join(unknown)}{_advice(unknown[0], settings, options)}")
    layers.append({each: _value(value, settings[each]) for each, value in vars(parsed).items() if each in settings})
    values = kind(**_nested(functools.reduce(operator.or_, layers)))
    if recipe:
        values.given = frozenset(itertools.chain(*layers[1:]))
    if parsed.print_config:
        print(yaml.safe_dump(dataclasses.asdict(values), sort_keys=False, allow_unicode=True), end="", flush=True)
        raise SystemExit(0)
    return values


def _normalised(arguments: Sequence[str], settings: Mapping[str, Setting]) -> Iterator[str]:
    """The arguments with `_` for `-` in names, and `=true` behind flags: the next word may be a positional."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        setting = settings.get(name[2:].replace("-", "_")) if word.startswith("--") else None
        is_flag = setting and bool in setting.kinds and not equals and following.lower() not in _TRUTH_VALUES
        known = f"--{setting.name}{equals}{value}" if setting else word
        yield f"{known}=true" if is_flag else known


def _advice(unknown: str, settings: Iterable[str], options: Iterable[str]) -> str:
    """What may have been meant by an argument that the parser does not know."""
    name = unknown.partition("=")[0].removeprefix("--")
    if not unknown.startswith("-") and "output_dir" in settings:  # a run's folder has no place of its own
        return f" (did you mean --output_dir {unknown}?)"
    if name.replace("-", "_") in settings:
        return " (a setting of --config files only)"
    return suggestion(name, options, "--")


def _overview() -> argparse.ArgumentParser:
    """A parser without a command, whose help lists the commands by topic."""
    lines = ["Linformer: encoders with linear-time attention."]
    for topic in TOPICS:
        commands = {name: command for name, command in COMMANDS.items() if command.topic == topic}
        lines += ["", f"{topic}:"]
        for name, each in commands.items():
            lines += [f"  {name:{_WIDTH}}  {each.summary}", f"  {'':{_WIDTH}}  {each.reason}"]
    end = "`linformer COMMAND --help` shows the settings of a command, with examples."
    parser = _Parser("linformer COMMAND [options]", "\n".join(lines), end)
    version = _add_general(parser).add_argument
    version("--version", action="version", version=__version__, help="Print the version and exit.")
    return parser


def _add_general(parser: argparse.ArgumentParser) -> Any:
    """Add the group of arguments of any command."""
    general = parser.add_argument_group("General")
    general.add_argument("-h", "--help", action="help", help="Show this help and exit.")
    return general


def _add_files(parser: Any, recipe: str) -> None:
    """Add the arguments that name files of settings."""
    if recipe:
        text = f"One of {', '.join(RECIPES)}, or a YAML file; other settings override it. [default: {recipe}]"
        parser.add_argument("--recipe", metavar="RECIPE", default=recipe, help=text)
    text = "YAML file of settings; may be repeated."
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help=text)


def _placeholder(argument: Setting) -> str:
    """What stands for an argument in the usage: FILE, FILE ... for several, or [FILE ...] for any number."""
    name = argument.name.upper()
    if list not in argument.kinds:
        return name
    return f"{name} ..." if argument.is_needed else f"[{name} ...]"


def _add_argument(group: Any, setting: Setting, recipe: Mapping[str, Any], *, by_place: bool) -> None:
    """Add an argument given by its place, or an option; only what is given comes out of the parser."""
    metavar, text, several = setting.metavar, _help(setting, recipe), list in setting.kinds
    if by_place:
        named = {"metavar": setting.name.upper(), "nargs": "*" if several else "?", "help": setting.sentence}
        group.add_argument(setting.name, default=argparse.SUPPRESS, **named)
        return
    if len(setting.name) + len(metavar) > _WIDEST:
        metavar, text = "CHOICE", f"One of {metavar[1:-1].replace(',', ', ')}. {text}"
    values = {"nargs": "?", "const": "true"} if bool in setting.kinds else {"nargs": "+"} if several else {}
    named = {"metavar": metavar, "help": text.replace("%", "%%")} | values
    group.add_argument(f"--{setting.name}", default=argparse.SUPPRESS, **named)


def _help(setting: Setting, recipe: Mapping[str, Any]) -> str:
    """What a setting does, and its value in the recipe or its default."""
    kind, value = "default", setting.default
    if setting.name in recipe:
        kind, value = "recipe", "" if recipe[setting.name] is None else as_text(recipe[setting.name])
    return setting.sentence + (f" [{kind}: {value}]" if value else "")


def _value(given: Any, setting: Setting) -> Any:
    """What was given on the command line as YAML would have it: a list as `[a, b]` or as words, null."""
    if given in ("null", ["null"]) and NoneType in setting.kinds:
        return None
    if not isinstance(given, list) or len(given) > 1:
        return given
    if given[0].startswith("[") and given[0].endswith("]"):
        with contextlib.suppress(yaml.YAMLError):
            return yaml.load(given[0], _Loader)
    return given if setting.kinds <= {list, NoneType} else given[0]


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by names with dots as nested settings."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        owner, _, last = name.rpartition(".")
        place = nested.setdefault(owner, {}) if owner else nested
        if not isinstance(place, dict):
            raise InputError(f"{owner}: expected settings by name, got {place!r}")
        place[last] = value
    return nested


def _recipe_file(name: str) -> Path:
    """The file of a recipe given by name or path."""
    path = RECIPES.get(name, Path(os.path.expanduser(name)))
    if not path.is_file():
        raise InputError(f"recipe: expected one of {', '.join(RECIPES)} or a YAML file, got {name!r}")
    return path


class _Loader(yaml.SafeLoader):
    """A loader of words, lists and nulls, which the settings convert as those of the command line.

    YAML itself would read `yes` as a truth value, 010 as 8 and 1:30 as 90. A name that stands twice, of which it takes
    the last, is rejected, and aliases, with which a few lines expand to billions of values.
    """

    yaml_implicit_resolvers = {
        start: [rule for rule in rules if rule[0] == "tag:yaml.org,2002:null"]
        for start, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in names[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} twice", key.start_mark)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    """Settings by name in a YAML file; errors name the file."""
    written = path.read_bytes()
    try:
        content = yaml.load(written, _Loader)
    except Exception as error:  # the parser raises errors of any type for invalid dates, numbers and nesting
        raise InputError(f"{path}: expected YAML, got {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(f"{path}: expected YAML of names and values, got {content!r:.99}")
    return content


class _Parser(argparse.ArgumentParser):
    """A parser that raises wrong usage as an `InputError`; its help is at most 120 characters wide, to be read."""

    def __init__(self, usage: str = "", description: str = "", epilog: str = "") -> None:
        width = min(shutil.get_terminal_size().columns, 120) - 2
        style = functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=8 if width < 100 else width * 3 // 10, width=width
        )
        super().__init__(None, usage, description, epilog, formatter_class=style, allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        print(end="", flush=True)  # here, where errors are reported
        super().exit(status, message)
