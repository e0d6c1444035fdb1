"""Rewrite arguments into the parser's syntax, and the parser's messages into ours."""

from __future__ import annotations

import difflib
import itertools
import re
import string
from collections import deque
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

_YES_OR_NO = ("true", "false", "yes", "no")
_NONE = "null"
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list[int]": "a list of integers",
    "list[list[int]]": "a list of lists of integers",
    "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
}


def normalise(arguments: Sequence[str], settings: type) -> list[str]:
    """Rewrite arguments into the parser's syntax.

    Hyphens in names become underscores, --flag of a boolean field without a value means true, and a field that takes a
    list takes all values that follow it: --train_file a.txt b.txt. They replace the field's default list, if any.
    """
    hints = {f"--{name}": hint for name, hint in get_type_hints(settings).items()}
    queue = deque(arguments)
    normalised: list[str] = []
    while queue:
        argument = queue.popleft()
        if not argument.startswith("--"):
            normalised.append(argument)
            continue
        name, equals, value = argument.partition("=")
        name = "--" + name[2:].replace("-", "_")
        item = _item_of_list(hints.get(name))
        if item is not None:
            values = [value] if equals else []
            while queue and not equals and not queue[0].startswith("--"):
                values.append(queue.popleft())
            replaces = get_origin(hints[name]) is list
            if replaces and values == [""]:
                values = ["[]"]
            elif values and (replaces or len(values) > 1 or _is_text(item)):
                values = [_spelled_list(values, item)]
            normalised.append(f"{name}{'=' if replaces else '+='}{values[0]}" if values else name)
        elif hints.get(name) is bool and not equals and (not queue or queue[0].lower() not in _YES_OR_NO):
            normalised.append(f"{name}=true")
        else:
            normalised.append(f"{name}{equals}{value}")
    return normalised


def values_of(name: str, arguments: Sequence[str]) -> list[str]:
    """The values of --name VALUE and --name=VALUE, in order; the parser rejects a name without a value."""
    values = []
    for argument, following in itertools.pairwise([*arguments, "--"]):
        if argument == name and not following.startswith("--"):
            values.append(following)
        elif argument.startswith(f"{name}="):
            values.append(argument.partition("=")[2])
    return values


def readable(message: str) -> str:
    """The parser's message rewritten as `field: expected ..., got ...`."""
    message = re.sub(r"^argument --(\w+)/--\w+\+:", r"argument --\1:", message)
    message = re.sub(r'^Parser key "([^"]+)": ', r"\1: ", message)
    message = re.sub(
        r"Does not validate .* Subtypes: \[(.*?)\] Errors: .* Given value: ?(.*)",
        lambda match: f"expected {match[1]}, got {match[2] or 'none'}",
        message,
    )
    message = re.sub(
        r"Expected an? (.*)\. Got value: ?(.*)", lambda match: f"expected {match[1]}, got {match[2] or 'none'}", message
    )
    message = re.sub(r"Unable to load config '(.*?)' - .*", r"expected settings by name, got \1", message)
    message = re.sub(
        r"Subcommand '([^']+)' does not accept option '([^']+)'",
        r"\2: expected a setting of \1, got an unknown one",
        message,
    )
    message = re.sub(r"typing\.Literal\[(.*?)\]", lambda match: "one of " + match[1].replace("'", ""), message)
    message = re.sub(r"<class '(\w+)'>", lambda match: match[1].replace("NoneType", _NONE), message)
    return re.sub(r"expected ([\w\[\], ]+), got ", lambda match: f"expected {_in_words(match[1])}, got ", message)


def explained(message: str, positionals: Sequence[str], known: Sequence[str]) -> str:
    """A message with missing arguments as in the usage, and with the known name that is most like an unknown one.

    Args:
        message: The message.
        positionals: Names of the positional arguments.
        known: All names of settings, or, without a command, of commands.
    """
    if required := re.fullmatch(r"(the following arguments are required:) (.*)", message):
        names = [name.rpartition(".")[2] for name in required[2].split(", ")]
        shown = ", ".join(name.upper() if name in positionals else f"--{name}" for name in names)
        return f"{required[1]} {shown}"
    unknown = re.match(
        r"unrecognized arguments: (--)|(?=[\w.]+: expected a setting)|argument command: invalid choice: '", message
    )
    if unknown is None:
        return message
    name = re.split(r"[\s=':]", message[unknown.end() :])[0]
    close = difflib.get_close_matches(name, known, 1, 0.7)
    return f"{message} (did you mean {unknown[1] or ''}{close[0]}?)" if close else message


def _in_words(kinds: str) -> str:
    """Types in words; null, which only a file can say, is not named."""
    names = [name for name in kinds.split(", ") if name != _NONE]
    return " or ".join(_KINDS[name] for name in names) if names and set(names) <= _KINDS.keys() else kinds


def _item_of_list(hint: Any) -> Any:
    """The type of the items of a field that takes a list, or a list or null; None for any other field."""
    kinds = [kind for kind in (get_args(hint) if get_origin(hint) is UnionType else [hint]) if kind is not NoneType]
    return get_args(kinds[0])[0] if len(kinds) == 1 and get_origin(kinds[0]) is list else None


def _spelled_list(values: list[str], item: Any) -> str:
    """The list as YAML; text items are quoted, so that commas in names stay and names like numbers stay text."""
    if len(values) == 1 and (values[0] == _NONE or (values[0].startswith("[") and values[0].endswith("]"))):
        return values[0]  # already YAML
    return f"[{', '.join(map(_quoted, values) if _is_text(item) else values)}]"


def _is_text(item: Any) -> bool:
    return item is str or get_origin(item) is Literal


def _quoted(text: str) -> str:
    """The text as a double-quoted YAML string."""
    plain = string.ascii_letters + string.digits + " .,:;/~_-+=*?!()[]{}<>@#%&|$^'`"
    # Lone surrogates (bytes that are not UTF-8) stay unescaped: the parser rejects them with a message.
    escaped = (each if each in plain or "\ud800" <= each <= "\udfff" else f"\\U{ord(each):08x}" for each in text)
    return f'"{"".join(escaped)}"'
