"""The tables of these tests have no outdated entries; commands that are not run are at least parsed."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import reproduce
from linformer_cli.parser import parse
from linformer_cli.settings.declare import COMMANDS
from reproduce import common
from tests.documentation.pages import PAGES, steps
from tests.documentation.tables import NOT_RUN, SCRIPT

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SCRIPT = re.compile(r"(?:`|^    )(python -m reproduce\.(?!common|NAME)[^`\n]+)", re.MULTILINE)
_REMARK = re.compile(r'  |,(?=[^"]*(?:"[^"]*"[^"]*)*$)')  # names in quotes may have commas
_OPTION = re.compile(r"--([a-zA-Z][\w-]*)")
# Of the parser, and of other programs that pages speak of.
_OTHERS = {"help", "config", "recipe", "print_config"} | {"nproc_per_node", "max_restarts", "logdir"}

ALL = {page: steps(page) for page in PAGES}


# Scripts that prepare texts: files by place.
WITHOUT_SETTINGS = ("reproduce.corpora", "reproduce.labelled_texts")


def test_what_is_not_run_is_there():
    for page, names in NOT_RUN.items():
        assert set(names) <= {step.name for step in ALL[page]}, page


@pytest.mark.e2e
def test_commands_are_whole_without_what_is_added():
    for step in itertools.chain(*ALL.values()):
        if step.text.startswith("linformer "):
            parse(shlex.split(step.text)[1:])
        elif step.text.startswith(SCRIPT):
            _parse_script(step.text)


@pytest.mark.e2e
def test_commands_of_scripts_in_tables_and_in_scripts_are_whole():
    folder = Path(reproduce.__path__[0])
    pages = [*PAGES.values(), folder.parent / "benchmarks" / "README.md", *folder.glob("*.py")]
    texts = [re.sub(r"\\+\n *", "", path.read_text(encoding="utf-8")) for path in pages]  # commands on two lines
    commands = [_REMARK.split(found)[0] for text in texts for found in _SCRIPT.findall(text)]
    assert len(commands) > 40
    for command in commands:
        _parse_script(command)


def _parse_script(command: str) -> None:
    _, _, module, *arguments = shlex.split(command)
    script = importlib.import_module(module)
    if module in WITHOUT_SETTINGS:
        return
    common.parse(script, script.Settings, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_options_in_the_text_are_there(page):
    """Options next to a command must be its own; others may be of any command."""
    known = {name: _options(command.settings) for name, command in COMMANDS.items()}
    scripts = [
        importlib.import_module(f"reproduce.{script.name}") for script in pkgutil.iter_modules(reproduce.__path__)
    ]
    anywhere = set().union(
        *known.values(), *(_options(script.Settings) for script in scripts if hasattr(script, "Settings"))
    )
    anywhere |= _OTHERS
    for span in _SPAN.findall(PAGES[page].read_text(encoding="utf-8")):
        command = next((name for name in known if f"{span} ".startswith(f"linformer {name} ")), None)
        for option in (name.replace("-", "_") for name in _OPTION.findall(span)):
            assert option in (anywhere if command is None else known[command] | _OTHERS), span


def _options(settings: type) -> set[str]:
    return {field.name for field in dataclasses.fields(settings)}
