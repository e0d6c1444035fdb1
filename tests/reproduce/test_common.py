"""The frame of the scripts: results resume, wrong values are one line, table and figure are made from the file."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from dataclasses import field
from importlib import metadata
from pathlib import Path

import pandas
import pytest
from matplotlib.figure import Figure

from linformer_cli.settings.declare import Measurement, settings
from reproduce import common

OWN = "linformer-kit"
MEASURED = []


@settings
class Settings(common.ScriptSettings):
    """A small script."""

    lengths: Measurement[list[int]] = field(default_factory=lambda: [2, 3])  # Values of n.


def measure(settings: Settings, results: common.Results) -> None:
    """Add one record for each length."""
    for n in settings.lengths:
        if n < 0:
            raise common.InputError(f"lengths: expected positive numbers, got {n}")
        if n == 97:
            raise KeyboardInterrupt
        if results.find(n=n) is None:
            MEASURED.append(n)
            results.add(n=n, seconds=n / 7)


def table(content: common.Record) -> str:
    return "# Title\n\n" + common.markdown(pandas.DataFrame(content["records"]))


def draw(content: common.Record) -> Figure | None:
    return Figure()


def start(*arguments: object) -> None:
    common.run(Settings, measure, table, draw, [str(argument) for argument in arguments])


def test_results_and_their_table(tmp_path, capsys):
    start("--lengths", 5, 7, "--output_dir", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "test_common.json").read_text())
    assert content["records"] == [{"n": 5, "seconds": 5 / 7}, {"n": 7, "seconds": 1.0}]
    assert content["complete"] and content["settings"] == {"lengths": [5, 7]}
    text = (tmp_path / "out" / "test_common.md").read_text()
    assert "| 7 " in text and "torch" in text and text in capsys.readouterr().out
    assert (tmp_path / "out" / "test_common.png").exists()


def test_what_is_measured_is_not_measured_again(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        start("--lengths", 11, 97, "--output_dir", tmp_path)
    assert exit_.value.code == 130 and str(tmp_path) in capsys.readouterr().err
    assert not json.loads((tmp_path / "test_common.json").read_text())["complete"]
    MEASURED.clear()
    with pytest.raises(SystemExit):
        start("--lengths", 11, 97, "--output_dir", tmp_path)
    assert MEASURED == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--lengths", "-3"], "lengths: expected positive numbers, got -3"),
        (["--lengths", "13"], "lengths: expected [2, 3], as in "),
        (["--lengths", "few"], "lengths: expected a valid integer, got few"),
        (["--length", "5"], "unrecognized arguments: --length 5 (did you mean --lengths?)"),
        (["--lengths", "5"], "output_dir: expected a new folder, or one with results of test_common, got "),
    ],
)
def test_wrong_values_are_one_line(tmp_path, capsys, arguments, expected):
    start("--output_dir", tmp_path / "earlier")
    capsys.readouterr()
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "notes.txt").write_text("mine")
    where = "earlier" if "13" in arguments else arguments[-1]
    with pytest.raises(SystemExit) as exit_:
        start(*arguments, "--output_dir", tmp_path / where)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.startswith(f"linformer: error: {expected}") and error.count("\n") == 1


def module_imports(path: Path) -> set[str]:
    """Packages that a file imports when it is imported."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    names = [alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names]
    names += [each.module for each in statements if isinstance(each, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"reproduce"}


@pytest.mark.e2e
def test_every_script_needs_only_the_requirements_and_has_help(capsys):
    root = Path(common.__file__).parents[1]
    known = {line.partition("==")[0] for line in (root / "requirements.txt").read_text().splitlines()} | {OWN}
    owners = metadata.packages_distributions()
    paths = [path for path in (root / "reproduce").glob("*.py") if "    run(Settings" in path.read_text()]
    assert len(paths) > 10
    for path in paths:
        for name in module_imports(path):
            assert known.intersection(each.lower().replace("_", "-") for each in owners[name]), (path, name)
        script = importlib.import_module(f"reproduce.{path.stem}")
        with pytest.raises(SystemExit, match="0"):
            common.parse(script, script.Settings, ["--help"])
        shown = capsys.readouterr().out
        assert f"usage: python -m reproduce.{path.stem} " in shown
        assert "\n        .\n" not in shown, "each setting has a sentence"
