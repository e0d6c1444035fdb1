"""What the scripts share: the command line, results that resume, tables and figures made from them.

A script has `Settings`, declared as those of the commands; `measure`, which adds records to `Results`; `table`, which
makes Markdown from the results; `draw`, which makes a figure; and ends with `run(Settings, measure, table, draw)`.
Records hold measurements only: derived columns are computed by `table`.

    python -m reproduce.common FOLDER...    make table and figure of finished results again
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linformer_cli.cli import errors_reported, set_up_logging
from linformer_cli.errors import InputError, input_errors
from linformer_cli.parser import parse_settings
from linformer_cli.settings import CostSettings as EncoderCostSettings
from linformer_cli.settings import without_local_paths
from linformer_cli.settings.declare import Count, Folder, Measurement, Output, settings
from linformer_kit.files.folders import open_output_dir
from linformer_kit.files.writing import write_whole
from linformer_kit.report.base import environment_line, write_json
from linformer_kit.report.base import table as table_lines
from linformer_kit.report.environment import best_device, environment
from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, save_figure, show_grid

# Names of ways to read a long text: in results, and where they are shown.
NAMES = {
    "cut": "truncated",
    "stretched": "full attention",
    "exact_windows": "exact windows",
    "linearised": "linear",
    "student": "linear with adapter",
}

Record = dict[str, Any]
Table = Callable[[Record], str]  # Markdown from the content of the JSON file
Draw = Callable[[Record], Figure | None]


@settings
class ScriptSettings:
    """Settings of all scripts."""

    output_dir: Output[Folder | None] = None
    """Folder of the results, continued if it has some; default: a new folder in `runs/`."""


@settings
class CostSettings(ScriptSettings, EncoderCostSettings):
    """Settings of the scripts that measure time and memory of encoders with random weights."""

    repetitions: Measurement[Count] = 5
    """Number of timed runs of each encoder at each length; the encoders alternate."""


class Results:
    """The records of a script, written to `<output_dir>/<script>.json` after each, and continued where that exists.

    Attributes:
        folder: The output folder.
        content: The content of the JSON file: `script`, `settings`, `environments` (of each start that added records),
            `complete`, `records`.

    Raises:
        InputError: if the folder has results of other settings than these, except `output_dir` and `device`, or other
            files.
    """

    def __init__(self, script: str, settings: Any) -> None:
        values, output_dir = without_local_paths(settings), settings.output_dir
        self.folder = open_output_dir(output_dir, command=script)
        self._path = self.folder / f"{script}.json"
        self._environment = environment(torch.device(values["device"]) if "device" in values else best_device())
        self.content: Record = {
            "script": script,
            "settings": values,
            "environments": [],
            "complete": False,
            "records": [],
        }
        if self._path.exists():
            self._continue()
        elif any(self.folder.iterdir()):
            raise InputError(f"output_dir: expected a new folder, or one with results of {script}, got {self.folder}")

    def _continue(self) -> None:
        earlier = read_results(self._path)
        for name, value in self.content["settings"].items():
            before = earlier["settings"].get(name)
            if name not in ("device", "only") and before != value:
                raise InputError(f"{name}: expected {before!r}, as in {self._path}, got {value!r}")
        self.content |= {name: earlier[name] for name in ("environments", "records")}

    def find(self, **key: Any) -> Record | None:
        """The record with these values, None if it is not measured yet."""
        for record in self.content["records"]:
            if all(record.get(name) == value for name, value in key.items()):
                return record
        return None

    def add(self, **record: Any) -> Record:
        """Add a record and write the file."""
        if self._environment not in self.content["environments"]:
            self.content["environments"].append(self._environment)
        self.content["records"].append(record)
        self.save()
        return record

    def save(self) -> None:
        """Write the JSON file, whole or not at all."""
        write_json(self.content, self._path)

    def finish(self) -> None:
        """Write the file as that of a complete measurement."""
        self.content["complete"] = True
        self.save()


def run(
    settings_type: type,
    measure: Callable[[Any, Results], None],
    table: Table,
    draw: Draw | None = None,
    arguments: list[str] | None = None,
) -> None:
    """Run a script: parse the command line, measure, write and print the table, draw the figure.

    Errors are reported as by the commands. What was measured before Ctrl-C is kept, and the same command with the same
    `--output_dir` continues. The help text is the docstring of the module of `measure`, which adds the records that are
    missing. `arguments` are the command line; None: that of the process.
    """
    with errors_reported():
        name, given = parse(sys.modules[measure.__module__], settings_type, arguments)
        set_up_logging()
        results = Results(name, given)
        try:
            measure(given, results)
        except KeyboardInterrupt:
            print(f"What was measured so far is in {results.folder}; the same command continues", file=sys.stderr)
            raise
        results.finish()
        print(show(results.content, results.folder, table, draw))
        print(f"Saved in {results.folder}")


def parse(script: ModuleType, settings_type: type, arguments: list[str] | None = None) -> tuple[str, Any]:
    """The name of a script, and its settings from a command line.

    Raises:
        InputError: for wrong arguments.
        SystemExit: after `--help`.
    """
    name = Path(script.__file__ or "").stem
    words = sys.argv[1:] if arguments is None else arguments
    return name, parse_settings(f"python -m reproduce.{name}", settings_type, words, description=str(script.__doc__))


def show(content: Record, folder: Path, table: Table, draw: Draw | None) -> str:
    """Write `<script>.md` and `<script>.png`, made from results, and return the Markdown."""
    machines = "\n".join(map(environment_line, content["environments"]))
    text = f"{table(content).rstrip()}\n\n{machines}\n"
    write_whole(folder / f"{content['script']}.md", text)
    figure = draw(content) if draw else None
    if figure is not None:
        save_figure(figure, folder / f"{content['script']}.png")
    return text


def read_results(path: Path) -> Record:
    """Read the results file of a script.

    Raises:
        InputError: if it is not one.
    """
    with input_errors(str(path)):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not {"script", "settings", "environments", "records"} <= content.keys():
        raise InputError(f"{path}: expected results of a script of reproduce, got other JSON")
    return content


def by_name(models: list[str]) -> dict[str, str]:
    """Folders or hub ids of models by their last parts, their names in results.

    Raises:
        InputError: for no model, and two of one name.
    """
    named = {Path(model).name: model for model in models}
    if not models or len(named) < len(models):
        raise InputError(f"models: expected one or more of different names, got {', '.join(models) or 'none'}")
    return named


def markdown(rows: pandas.DataFrame | Iterable[Record], columns: Sequence[str] | None = None) -> str:
    """Rows as a Markdown table; missing values are dashes. Cells are not padded: pages quote whole rows."""
    frame = pandas.DataFrame(rows, columns=columns).astype(object)
    shown = frame.where(frame.notna(), "–").map(str)
    return "\n".join(table_lines(list(map(str, shown.columns)), shown.values.tolist()))


def mean_and_deviation(numbers: Sequence[float], decimals: int, *, sign: str = "") -> str:
    """The mean and, for several numbers, the sample standard deviation; `sign` "+" shows that of a positive mean."""
    deviation = f" ± {statistics.stdev(numbers):.{decimals}f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):{sign}.{decimals}f}{deviation}"


def length_axis(axes: Axes, lengths: list[int]) -> None:
    """Logarithmic axes with a grid, for a drawn figure: n with its measured values, and numbers in full beside."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.tick_params(axis="x", labelrotation=30, labelsize=8)
    low, high = axes.get_ylim()
    log_ticks(axes.yaxis, (1, 2, 5) if high > 10 * low else (1, 1.2, 1.5, 2, 3, 4, 5, 7))
    number_ticks(axes.yaxis, "g")
    axes.yaxis.set_tick_params(labelleft=True)
    axes.set_xlabel("n, tokens in a sequence")
    show_grid(axes)


def new_panels(count: int, size: tuple[float, float], *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of several axes in one or two columns, and its axes; `size`: width and height of each in inches."""
    columns = min(2, count)
    rows = math.ceil(count / columns)
    figure, grid = new_figure((size[0] * columns, size[1] * rows), rows, columns, squeeze=False, sharey=sharey)
    for unused in grid.flat[count:]:
        unused.remove()
    return figure, list(grid.flat[:count])


def main(folders: list[str]) -> None:
    """Make table and figure of each results file in the folders again."""
    for path in (path for folder in folders for path in sorted(Path(folder).glob("*.json"))):
        content = read_results(path)
        script = importlib.import_module(f"reproduce.{content['script']}")
        show(content, path.parent, script.table, getattr(script, "draw", None))
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
