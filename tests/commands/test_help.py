"""`--help`: short usage, groups, each setting and each default once, examples that parse, the width of the terminal."""

from __future__ import annotations

import re
import shlex
from typing import get_args

import pytest

from linformer_kit.commands.cli import main
from linformer_kit.commands.parser import parse
from linformer_kit.commands.table import COMMANDS, RECIPES
from linformer_kit.settings.declare import GROUPS, settings_of

FORBIDDEN = ["site-packages", str(RECIPES), "==SUPPRESS=="]
OVERVIEWS = [""]
TITLES = [get_args(group)[1].title for group in GROUPS]
_HEADING = re.compile(r"^([A-Z][^:\n]*):$", re.M)
_OPTION = re.compile(r"^  (?:-h, )?(--[\w.]+)", re.M)


def help_of(name: str, capsys, *options: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*name.split(), *options, "--help"])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def entry(text: str, option: str) -> str:
    """An option with its sentence and default, in one line."""
    found = re.search(rf"^  (?:-h, )?{re.escape(option)}(?: .*)?$(?:\n {{3,}}.*$)*", text, re.M)
    assert found, option
    return " ".join(found[0].split())


def offered(name: str) -> list[str]:
    """The options of a command: its settings, without those of another command in them."""
    command = COMMANDS[name]
    names = [setting.name for setting in settings_of(command.settings)]
    general = ["--help", "--config", "--print_config", *(["--recipe"] if command.recipe else [])]
    return general + [f"--{each}" for each in names if each not in command.positionals and not each.startswith("base.")]


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", [*OVERVIEWS, *COMMANDS])
def test_help_fits_the_terminal(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = help_of(name, capsys)
    longest = max(map(len, text.splitlines()))
    assert longest <= min(columns, 120)
    if name in COMMANDS and len(text.splitlines()) > 40:
        assert longest > min(columns, 120) - 10


@pytest.mark.parametrize("name", COMMANDS)
def test_usage_is_one_line_with_what_is_needed(name, capsys):
    first, second = help_of(name, capsys).splitlines()[:2]
    assert first.startswith(f"usage: linformer {name} ") and first.endswith("[options]") and second == ""
    assert re.findall(r" ([A-Z_]+)(?= |$)", first.partition("--")[0]) == [
        each.upper() for each in COMMANDS[name].positionals
    ]


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("", "linformer COMMAND [options]"),
        ("distill", "linformer distill TEACHER OUTPUT_DIR [options]"),
        ("pretrain", "linformer pretrain [options]"),
        ("finetune", "linformer finetune --model MODEL [options]"),
    ],
)
def test_usage(name, usage, capsys):
    assert help_of(name, capsys).startswith(f"usage: {usage}\n\n")


@pytest.mark.parametrize("name", [*OVERVIEWS, *COMMANDS])
def test_no_help_shows_the_parsers_inside(name, capsys):
    text = help_of(name, capsys)
    for fragment in FORBIDDEN:
        assert fragment not in text
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|Literal|MISSING", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_is_there_once(name, capsys):
    text = help_of(name, capsys)
    assert sorted(_OPTION.findall(text)) == sorted(offered(name))
    for positional in COMMANDS[name].positionals:
        assert len(re.findall(rf"^  {positional.upper()}(?: |$)", text, re.M)) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_has_a_sentence_and_at_most_one_default(name, capsys):
    text = help_of(name, capsys)
    for option in offered(name):
        told = entry(text, option)
        assert re.search(r" [^ ]*[\w)`]\.(?: \[(?:default|recipe): [^]]*[^].]\])?$", told), told
        assert "default:" not in told.replace("[default: ", "").lower(), told


@pytest.mark.parametrize("name", COMMANDS)
def test_groups_are_ordered_and_not_repeated(name, capsys):
    headings = _HEADING.findall(help_of(name, capsys))
    start = ["Arguments"] if COMMANDS[name].positionals else []
    end = ["Recipes"] if COMMANDS[name].recipe else []
    groups = headings[len(start) + 1 : len(headings) - len(end) - 1]
    assert headings == [*start, "General", *groups, *end, "Examples"]
    assert groups and groups == [group for group in TITLES if group in groups]


@pytest.mark.parametrize(
    ("name", "option", "told"),
    [
        ("distill", "--sliding_window", "--sliding_window INT Number of neighbouring tokens that each query attends to exactly, its own included; 0: none. [default: 128]"),
        ("distill", "--sharing", "--sharing {none,headwise,key_value,layerwise} Which of the matrices E and F are shared. [default: headwise]"),
        ("distill", "--resume", "--resume Resume from the newest intact checkpoint in output_dir, or start from the beginning if there is none."),
        ("finetune", "--metric_for_best_model", "--metric_for_best_model METRIC "),
        ("predict", "--output", "--output FILE "),
        ("finetune", "--seeds", "--seeds INT ... Seeds of the head's weights, the order and dropout; one training for each. [default: 0]"),
        ("pretrain", "--learning_rate", "--learning_rate FLOAT Highest learning rate, reached at the end of the warm-up. [recipe: 0.006]"),
        ("pretrain", "--model.projected_dim", "--model.projected_dim INT ... k, "),
        ("pretrain", "--max_grad_norm", "[default: 1.0]"),
        ("pretrain", "--print_config", "--print_config Print all settings as YAML for --config, and exit."),
    ],
)  # fmt: skip
def test_what_help_says_of_a_setting(name, option, told, capsys):
    found = entry(help_of(name, capsys), option)
    assert found == told if told.startswith("--") and told.endswith((".", "]")) else told in found


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.recipe])
def test_help_lists_recipes_and_says_which_one_it_shows(name, capsys):
    text = help_of(name, capsys)
    recipes = [path.stem for path in RECIPES.glob("*.yaml")]
    listed = text[text.index("Recipes:\n") :]
    assert recipes and all(re.search(rf"^  {each} +\w", listed, re.M) for each in recipes)


def test_help_shows_the_values_of_the_recipe_that_is_given(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text((RECIPES / "tiny.yaml").read_text() + "seed: 3\nsave_total_limit: null\n")
    text = help_of("pretrain", capsys, "--recipe", str(tmp_path / "mine.yaml"))
    assert "[recipe: 3]" in entry(text, "--seed") and "[" not in entry(text, "--save_total_limit")
    assert "[recipe: 256]" in entry(help_of("pretrain", capsys, "--recipe", "small"), "--model.hidden_size")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_overview_lists_commands_by_topic_in_one_line_each(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    text = capsys.readouterr().out
    rows = re.findall(r"^  ([a-z][\w-]*)  +(\S.*)$", text, re.M)
    expected = {(name, command.summary) for name, command in COMMANDS.items() if " " not in name}
    assert exit_.value.code == 0 and set(rows) >= expected
    assert _HEADING.findall(text) == ["Use a model", "Train", "Convert", "Measure", "General"]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse_and_are_shown(name, capsys):
    text = help_of(name, capsys)
    lines = [f"linformer {name} {words}".rstrip() for words in COMMANDS[name].examples]
    assert 1 <= len(lines) <= 2
    assert text.endswith("Examples:\n" + "".join(f"  {line}\n" for line in lines))
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "linformer" and parse(arguments)[0] == name
