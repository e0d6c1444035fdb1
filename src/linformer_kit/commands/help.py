"""The text of `--help`: its layout, the lists of commands and recipes, and examples."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from pathlib import Path

from jsonargparse import DefaultHelpFormatter

from linformer_kit.commands.table import COMMANDS, Command

_WIDEST = 120  # longer lines are hard to read
# In narrower lines, sentences start below the names, with this indent.
_WIDE, _NARROW = 100, 8
_HEADINGS = {"options": "General", "positional arguments": "Arguments"}
_RECIPE_FILES = "default config file locations"  # jsonargparse's section with the paths of the recipe
_OWN = {  # in our words
    "--help": "Show this help and exit.",
    "--version": "Print the version and exit.",
    "--print_config": "Print all settings as YAML for --config, and exit.",
}
_DEFAULT = re.compile(r"\[\w+: [^]]{,24}\]")  # stays in one line
_ROW = re.compile(r" +(?:\S| (?! ))+ {2,}")  # indent and first column of a line in columns


class HelpFormatter(DefaultHelpFormatter):
    """Lays out help in the width of the terminal: the name and kind of a value once, sentences as they are."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST) - 2
        super().__init__(prog, max_help_position=_NARROW if width < _WIDE else width * 3 // 10, width=width)

    def start_section(self, heading: str | None) -> None:
        super().start_section(_HEADINGS.get(heading or "", heading))

    def add_text(self, text: str | None) -> None:
        if self._current_section.heading != _RECIPE_FILES:
            super().add_text(text)

    def _get_help_string(self, action: argparse.Action) -> str:
        if action.option_strings and action.option_strings[-1] in _OWN:
            return _OWN[action.option_strings[-1]]
        choices = _choices(action).replace(",", ", ") if self._is_too_wide(action) else ""
        return f"One of {choices}. {action.help}" if choices else action.help or ""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.option_strings and action.option_strings[-1] in _OWN:
            return ", ".join(action.option_strings)
        return _invocation(action, "CHOICE") if self._is_too_wide(action) else _invocation(action)

    def _is_too_wide(self, action: argparse.Action) -> bool:
        """Whether the choices of an argument do not fit in one line."""
        return bool(_choices(action)) and self._current_indent + len(_invocation(action)) > self._width

    def _split_lines(self, text: str, width: int) -> list[str]:
        kept = _DEFAULT.sub(lambda match: match[0].replace(" ", "\0"), text)
        lines = textwrap.wrap(kept, width, break_on_hyphens=False, break_long_words=False)
        return [line.replace("\0", " ") for line in lines]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill each line of a text; lines in columns continue in the last column."""
        return "\n".join(_filled(line, width) for line in text.splitlines())


def overview() -> str:
    """All commands by topic."""
    rows = [(name, command.topic, command.summary) for name, command in COMMANDS.items()]
    width = max(len(name) for name, _, _ in rows)
    topics = {topic: [row for row in rows if row[1] == topic] for _, topic, _ in rows}
    blocks = (
        [f"{topic}:", *(f"  {name:{width}}  {summary}" for name, _, summary in listed)]
        for topic, listed in topics.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def epilog(name: str, command: Command, recipes: list[Path]) -> str:
    """The end of a command's help: the recipes to choose from, and examples."""
    width = max((len(path.stem) for path in recipes), default=0)
    listed = [f"  {path.stem:{width}}  {_title(path)}" for path in recipes]
    examples = [f"  {line}" for line in example_lines(name, command)]
    return "\n".join([*(["Recipes:", *listed, ""] if listed else []), "Examples:", *examples])


def example_lines(name: str, command: Command) -> list[str]:
    """The examples of a command as command lines."""
    return [f"linformer {name} {arguments}".rstrip() for arguments in command.examples]


def _title(recipe: Path) -> str:
    """The first sentence in the header of a recipe, `# NAME: SENTENCE.`."""
    with recipe.open(encoding="utf-8") as lines:
        return next(lines).partition(": ")[2].strip().partition(". ")[0].rstrip(".")


def _choices(action: argparse.Action) -> str:
    metavar = str(action.metavar)
    return metavar[1 : metavar.index("}")] if metavar.startswith("{") else ""


def _invocation(action: argparse.Action, value: str | None = None) -> str:
    names = [name for name in action.option_strings if not name.endswith("+")]  # NAME+ appends, for `spelling.py`
    return " ".join(filter(None, [", ".join(names), value or action.metavar]))  # type: ignore[list-item]


def _filled(line: str, width: int) -> str:
    row = _ROW.match(line)
    indent = " " * (len(row[0]) if row else 0)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
