"""The frame of the scripts: results resume, wrong values are one line, table and figure are made from the file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import field
from pathlib import Path

import pandas
import pytest
from matplotlib.figure import Figure

from linformer_cli.settings.declare import Measurement, settings
from reproduce import common

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


# Runs each script for its help, where modules of other packages than those of requirements.txt, and what these need,
# are not found.
_HELP = """
import re, runpy, sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from packaging.requirements import Requirement

def name_of(requirement):
    return re.sub("[-_.]+", "-", requirement.name).lower()

lines = Path("requirements.txt").read_text().splitlines()
wanted = [Requirement(line) for line in lines if line and line[0] not in "#-"]
known = {"linformer-kit"}
while wanted:
    requirement = wanted.pop()
    if name_of(requirement) not in known:
        known.add(name_of(requirement))
        needed = map(Requirement, metadata.requires(requirement.name) or ())
        extras = requirement.extras or {""}
        wanted += [
            each for each in needed if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]
owners = {
    module: {re.sub("[-_.]+", "-", each).lower() for each in found}
    for module, found in metadata.packages_distributions().items()
}

class Known(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_known = owners.get(name.partition(".")[0], known) & known
        return super().find_spec(name, path, target) if is_known else None

sys.meta_path[:] = [Known if finder is PathFinder else finder for finder in sys.meta_path]
for script in sys.argv[1:]:
    sys.argv[1:] = ["--help"]
    try:
        runpy.run_module(f"reproduce.{script}", run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        assert exit_.code == 0, script
"""


@pytest.mark.e2e
def test_the_packages_of_the_requirements_are_enough_for_every_script():
    root = Path(common.__file__).parents[1]
    scripts = [path.stem for path in (root / "reproduce").glob("*.py") if "    run(Settings" in path.read_text()]
    result = subprocess.run([sys.executable, "-c", _HELP, *scripts], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [f"usage: python -m reproduce.{name} " in result.stdout for name in scripts] == [True] * 14
    assert "\n        .\n" not in result.stdout, "each setting has a sentence"
