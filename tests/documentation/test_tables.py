"""The tables of these tests have no outdated entries; commands that are not run are at least parsed."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
import re
import shlex

import pytest
import tyro
from torch.distributed.run import parse_args

import reproduce
from linformer_kit.commands.parser import parse
from linformer_kit.commands.table import COMMANDS
from tests.documentation import pages
from tests.documentation.pages import PAGES, Step, steps
from tests.documentation.tables import GIVEN, IN_PYTHON, NOT_RUN, OPTIONS, PRESUMED, SCRIPT

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_OPTION = re.compile(r"--([a-zA-Z][\w-]*)")
# Of the parser, and of other programs that pages speak of.
_OTHERS = {"help", "config", "recipe", "print_config"} | {"nproc_per_node", "max_restarts", "logdir"}

ALL = {page: steps(page) for page in PAGES}


def test_what_is_not_run_is_there_and_nothing_else_is_no_command():
    for page, found in ALL.items():
        names = [step.name for step in found]
        assert set(NOT_RUN.get(page, ())) <= set(names), page
        assert {step.name for step in found if step.kind == "other"} <= set(NOT_RUN.get(page, ())), page
    assert NOT_RUN.keys() <= ALL.keys()


def test_what_is_given_and_changed_is_there():
    typed = [step.text for found in ALL.values() for step in found]
    assert all(any(text.startswith(begin) for text in typed) for begin in OPTIONS)
    added = " ".join(OPTIONS.values())
    for page, names in GIVEN.items():
        assert all(name in PAGES[page].read_text(encoding="utf-8") or name in added.split() for name in names), page
    for page, replaced in IN_PYTHON.items():
        blocks = "".join(step.text for step in ALL[page] if step.kind == "python")
        assert all(old in blocks for old in replaced), page
    assert PRESUMED.keys() <= ALL.keys()


@pytest.mark.e2e
def test_commands_are_whole_without_what_is_added():
    for step in itertools.chain(*ALL.values()):
        if step.text.startswith("linformer "):
            parse(shlex.split(step.text)[1:])
        elif step.text.startswith(SCRIPT):
            _, _, module, *arguments = shlex.split(step.text)
            tyro.cli(importlib.import_module(module).Settings, args=arguments, use_underscores=True)


def test_what_needs_several_machines_is_known_to_torchrun_and_to_the_command():
    commands = [shlex.split(name)[1:] for names in NOT_RUN.values() for name in names if name.startswith("torchrun")]
    for words in commands:
        options = parse_args(words)
        assert options.nnodes != "1:1"
        if options.module:
            parse(options.training_script_args)
    assert commands


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


def test_how_a_page_is_read(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    lines = ["text", "```", "pip install a && linformer a 'b c' \\", "  --d  # why", "", "linformer e", "```"]
    lines += [
        "- in a list",
        "  ```python",
        "  if a:",
        "      b()",
        "  ```",
        "```",
        "x = y",
        "```",
        "```text",
        "z",
        "```",
    ]
    page.write_text("\n".join(lines))
    monkeypatch.setitem(pages.PAGES, "page.md", page)
    assert steps("page.md") == [
        Step("command", "pip install a", 3),
        Step("command", "linformer a 'b c' --d", 3),
        Step("command", "linformer e", 6),
        Step("python", "if a:\n    b()", 10),
        Step("other", "x = y", 14),
        Step("other", "z", 17),
    ]
    page.write_text("```\nlinformer a\n")
    with pytest.raises(AssertionError, match=r"page\.md: a fence that is not closed"):
        steps("page.md")


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ("linformer adapters\nlinformer adapters --draw 1", 3),
        ("python\nimport math\n\nmath.no", 2),
    ],
)
@pytest.mark.e2e
def test_what_fails_is_named(block, line, read, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"```{block}\n```\n" if block.startswith("python") else f"```\n{block}\n```\n")
    monkeypatch.setitem(pages.PAGES, "page.md", page)
    with pytest.raises(AssertionError, match=rf"page\.md, line {line}: "):
        read("page.md")
