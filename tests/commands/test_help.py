"""`--help`: short usage, groups, each setting and each default once, examples that parse, the width of the terminal."""

from __future__ import annotations

import re
import shlex

import pytest

from linformer_cli.cli import main
from linformer_cli.parser import RECIPES, parse
from linformer_cli.settings.declare import COMMANDS, TITLES, settings_of

_HEADING = re.compile(r"^([A-Z][^:\n]*):$", re.M)
_OPTION = re.compile(r"^  (?:-h, )?(--[\w.]+)", re.M)


def help_of(*arguments: str, capsys) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--help"])
    return capsys.readouterr().out


def entry(text: str, option: str) -> str:
    """An option with its sentence and default, in one line."""
    lines = re.search(rf"^  (?:-h, )?{re.escape(option)}(?: .*)?$(?:\n {{3,}}.*$)*", text, re.M)
    assert lines, option
    return " ".join(lines[0].split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name, capsys):
    command, text = COMMANDS[name], help_of(name, capsys=capsys)
    usage, empty = text.splitlines()[:2]
    assert f"\n{command.summary}.\n{command.reason}\n" in text and command.reason.endswith(".")
    assert usage.startswith(f"usage: linformer {name} ") and usage.endswith("[options]") and empty == ""
    for each in settings_of(command.settings):  # a default stands once: in the sentence, or behind it
        assert len(each.sentence) > 9 and not (each.default and "default:" in each.sentence.lower()), each.name
    for positional in (each.name for each in settings_of(command.settings) if each.group == "Arguments"):
        assert len(re.findall(rf"^  {positional.upper()}(?: |$)", text, re.M)) == 1
    settings = [f"--{each.name}" for each in settings_of(command.settings) if each.group in TITLES[1:]]
    general = ["--help", "--config", "--print_config", *(["--recipe"] if command.recipe else [])]
    assert sorted(_OPTION.findall(text)) == sorted(settings + general)
    for option in settings + general:
        told = entry(text, option)
        assert re.search(r" [^ ]*[\w)`]\.(?: \[(?:default|recipe): [^]]*[^].]\])?$", told), told
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|Literal|MISSING|SUPPRESS|site-packages", text)
    headings = [each for each in _HEADING.findall(text) if each not in ("General", "Example")]
    assert headings and headings == [title for title in TITLES if title in headings]


@pytest.mark.parametrize("columns", [80, 200])
def test_help_fits_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in COMMANDS:
        assert max(map(len, help_of(name, capsys=capsys).splitlines())) <= min(columns, 120)


def test_help_shows_the_values_of_the_recipe_that_is_given(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(RECIPES["tiny"].read_text() + "seed: 3\nsave_total_limit: null\n")
    text = help_of("pretrain", "--recipe", str(tmp_path / "mine.yaml"), capsys=capsys)
    assert "[recipe: 3]" in entry(text, "--seed") and "[" not in entry(text, "--save_total_limit")
    assert "[recipe: 256]" in entry(help_of("pretrain", "--recipe", "small", capsys=capsys), "--model.hidden_size")


def test_the_overview_lists_commands_by_topic_in_one_line_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([])
    text = capsys.readouterr().out
    rows = re.findall(r"^  ([a-z][\w-]*)  +(\S.*)$", text, re.M)
    assert set(rows) >= {(name, command.summary) for name, command in COMMANDS.items()}
    assert all(f"\n{' ':14}{command.reason}\n" in text for command in COMMANDS.values())
    assert max(map(len, text.splitlines())) <= 80
    assert _HEADING.findall(text) == ["Use a model", "Train", "Convert", "Measure", "General"]


def test_examples_parse_and_are_shown(capsys):
    for name, command in COMMANDS.items():
        line = f"linformer {name} {command.example}"
        assert help_of(name, capsys=capsys).endswith(f"Example:\n  {line.strip()}\n")
        assert parse(shlex.split(line)[1:])[0] == name
