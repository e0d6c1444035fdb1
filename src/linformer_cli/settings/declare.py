"""How a setting is declared, once: its type, limits, group, default and sentence stand at its field.

    @settings
    class PretrainSettings(TrainingSettings):
        '''Pretrain a masked language model on text.'''

        max_steps: Training[Count]
        '''Number of updates.'''
        split_seed: Texts[Seed | None] = None
        '''What it does; default: what no value means.'''

The docstring under a field is its help, also for fields of the same name in subclasses that have none.
Settings of the group `OfFiles` are no options of the command line: files of settings take them.
Values are checked when an instance is made: from the command line, from YAML and in Python. Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin
from typing import get_type_hints as hints_of

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from linformer_cli.errors import InputError

T = TypeVar("T")
_METAVARS = {int: "INT", float: "FLOAT", bool: "BOOL", str: "TEXT"}


class Group(str):
    """Title of a group of settings in `--help`."""


Argument = Annotated[T, Group("Arguments")]  # given without its name on the command line
Model = Annotated[T, Group("Model")]
Linear = Annotated[T, Group("Linear attention")]
Adapter = Annotated[T, Group("Adapter")]
Texts = Annotated[T, Group("Texts")]
Measurement = Annotated[T, Group("Measurement")]
Encoder = Annotated[T, Group("Encoder")]
Training = Annotated[T, Group("Training")]
Evaluation = Annotated[T, Group("Evaluation and checkpoints")]
Machine = Annotated[T, Group("Machine and precision")]
Output = Annotated[T, Group("Output")]
OfFiles = Annotated[T, Group("")]  # of a --config file, not of the command line
_GROUPS = (Argument, Model, Linear, Adapter, Texts, Measurement, Encoder, Training, Evaluation, Machine, Output)
TITLES = [get_args(each)[1] for each in _GROUPS]  # in the order of help

LONGEST = 2**24  # tokens; larger numbers are treated as a mistake, since no machine has the memory for them
Count = Annotated[int, Field(ge=1)]
Counts = Annotated[list[Count], Field(min_length=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Length = Annotated[int, Field(ge=1, le=LONGEST)]
Tokens = Annotated[int, Field(ge=0, le=LONGEST)]
Timeout = Annotated[int, Field(ge=1, le=2**31 - 1)]  # seconds
Workers = Annotated[int, Field(ge=0, le=256)]  # processes; many more stop a machine before they could start
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # of numpy
Precision = Literal["auto", "float32", "bfloat16"]
# Texts by what they name: what `--help` calls them, and whether `~` is the home folder.
File = Annotated[str, AfterValidator(os.path.expanduser), "FILE"]
Folder = Annotated[str, AfterValidator(os.path.expanduser), "FOLDER"]
ModelName = Annotated[str, AfterValidator(os.path.expanduser), "MODEL"]
Document = Literal["file", "line"]  # how text files are split into documents


@dataclass_transform(kw_only_default=True)
def settings(kind: type[T], *, strict: bool = False) -> type[T]:
    """A dataclass whose values are checked: wrong ones raise an `InputError` with the name of the first.

    With `strict`, values are not converted: "8" is no number.
    """
    for name, hint in () if strict else inspect.get_annotations(kind).items():
        if _kinds(hint) & {int, float, list}:
            kind.__annotations__[name] = Annotated[hint, BeforeValidator(_not_a_truth_value)]
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=not strict, strict=strict, use_attribute_docstrings=True)
    checked: Any = dataclass(kw_only=True, config=config)(kind)
    make = checked.__init__

    @functools.wraps(make)
    def __init__(self: Any, **values: Any) -> None:
        try:
            make(self, **values)
        except ValidationError as error:
            raise InputError(_first(error, checked)) from None

    checked.__init__ = __init__
    return checked


class Command(NamedTuple):
    """A subcommand; the docstring of its settings has what it does, and when one takes it."""

    settings: type
    topic: str  # in the list of commands
    module: str  # of `linformer_kit`, whose `main` runs it
    example: str = ""  # of its arguments
    recipe: str = ""  # the default one, if it has recipes
    extra: str = "commands"  # of the package, with the libraries that it needs

    @property
    def summary(self) -> str:
        """What it does."""
        return str(self.settings.__doc__).partition("\n")[0].rstrip(".")

    @property
    def reason(self) -> str:
        """When one takes it."""
        return str(self.settings.__doc__).partition("\n")[2].strip()


COMMANDS: dict[str, Command] = {}


@dataclass_transform(kw_only_default=True)
def command(name: str, *fields: str, **named: str) -> Callable[[type[T]], type[T]]:
    """Settings that are those of a subcommand; the other arguments are the fields of its `Command`, in `COMMANDS`."""

    def declared(kind: type[T]) -> type[T]:
        COMMANDS[name] = Command(settings(kind), *fields, **named)
        return COMMANDS[name].settings

    return declared


def _not_a_truth_value(value: Any) -> Any:
    """A value in which nothing is a truth value, which pydantic would convert to a number."""
    for each in value if isinstance(value, list) else ():
        _not_a_truth_value(each)
    if isinstance(value, bool):
        raise PydanticCustomError("number", "a number")
    return value


def changed(values: Any, kind: type) -> dict[str, Any]:
    """The settings of a class that have another value than by default, by name."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return {name: value for name, default in defaults.items() if (value := getattr(values, name)) != default}


class Setting(NamedTuple):
    """A setting of a command."""

    name: str  # with dots if nested
    group: str  # title of its group in `--help`
    kinds: set[Any]  # types that it may have, with NoneType where it may be None
    metavar: str  # what `--help` calls its values
    sentence: str  # what it does
    default: str  # its value where it is not given; empty if it has none
    is_needed: bool  # it has no default


def settings_of(kind: type, prefix: str = "") -> list[Setting]:
    """All settings of a class, also nested ones."""
    hints, sentences = hints_of(kind, include_extras=True), _sentences(kind)
    every: list[Setting] = []
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            every += settings_of(hint, f"{name}.")
            continue
        group = next(mark for mark in get_args(hint) if isinstance(mark, Group))
        is_needed = field.default is field.default_factory  # both are MISSING
        texts = sentences.get(field.name, ""), _default(field)
        every.append(Setting(name, group, _kinds(hint), _metavar(hint), *texts, is_needed))
    return every


def _kinds(hint: Any) -> set[Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(parts[0])
    return set().union(*map(_kinds, parts)) if origin in (Union, UnionType) else {origin or hint}


def _metavar(hint: Any) -> str:
    """The name of the kind of value: INT, {a,b} for choices; of a list and of several kinds, that of the first."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"{{{','.join(parts)}}}"
    named = [part for part in parts if type(part) is str]
    return named[0] if named else _metavar(parts[0]) if parts else _METAVARS[hint]


def _sentences(kind: type) -> dict[str, str]:
    """What each setting does, by name: the docstrings under the fields of the class and of its base classes."""
    fields = [vars(each).get("__pydantic_fields__", {}) for each in reversed(kind.__mro__)]
    return {name: field.description for each in fields for name, field in each.items() if field.description}


def _default(field: dataclasses.Field[Any]) -> str:
    """The default as text; empty where the sentence says what no value means."""
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "" if default in (None, [], False, dataclasses.MISSING) else as_text(default)


def as_text(value: Any) -> str:
    """A value as one writes it on the command line."""
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return " ".join(map(as_text, value)) or "none"
    if isinstance(value, str | float):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]


# Around what a value should be in pydantic's messages.
_REASON = re.compile("^Input should be |, (unable|got) .*")
_TYPES = ("int", "float", "bool", "str", "list")


def _first(error: ValidationError, kind: type) -> str:
    """The first wrong setting in one line: its name, what was expected and what was got."""
    # Names that are wrong before values, and what is missing last, since another error may be why.
    order = {"unexpected_keyword_argument": 0, "missing": 2}
    first, *others = sorted(error.errors(include_url=False), key=lambda each: order.get(each["type"], 1))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):  # of `__post_init__`
        return str(cause)
    name = _name(first)
    if first["type"] == "missing":
        return f"{name}: expected a value, got none"
    if first["type"] == "unexpected_keyword_argument":
        known = [each.name for each in settings_of(kind)]
        return f"{name}: expected a setting, got an unknown one{suggestion(name, known)}"
    same = [each for each in (first, *others) if _name(each) == name]  # of a union, one for each of its types
    expected = dict.fromkeys(_REASON.sub("", each["msg"]).replace("a valid boolean", "true or false") for each in same)
    got = "none" if first["input"] == "" else first["input"]
    if first["type"] in ("int_type", "float_type", "bool_type"):  # not converted, so "8" is shown as what it is
        got = repr(got)
    return f"{name}: expected {' or '.join(expected)}, got {got}"


def suggestion(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Advice at the end of a message: the known name that is most like this one."""
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), 1, 0.7)
    return f" (did you mean {dashes}{close[0]}?)" if close else ""


def _name(problem: Any) -> str:
    """The name of a setting, with dots if nested; pydantic adds places in lists and types of unions."""
    names = itertools.takewhile(
        lambda part: isinstance(part, str) and part.isidentifier() and part not in _TYPES, problem["loc"]
    )
    return ".".join(names)
