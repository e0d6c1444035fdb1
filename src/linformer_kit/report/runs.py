"""Many results in one HTML page: a sortable table, the curves of trainings over each other, and every report."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linformer_kit.errors import InputError, input_errors
from linformer_kit.report.figures import new_figure, png_of, show_grid
from linformer_kit.report.page import figure_of, page_fields, render

logger = logging.getLogger(__name__)

_MOST_LINES = 6  # of a figure
_OF_TRAININGS = ("updates", "seconds")  # numbers that the table shows besides the metrics
Curve = list[list[float]]  # pairs of update and value


class Result(NamedTuple):
    """A folder of results.

    Attributes:
        name: Path below the folder that was searched.
        folder: The folder.
        results: Content of its JSON file.
        text: Content of its Markdown file.
    """

    name: str
    folder: Path
    results: dict[str, Any]
    text: str


class Training(NamedTuple):
    """One training of some results.

    Attributes:
        name: Its name among all results.
        curves: Pairs of update and value by metric.
        numbers: Further numbers by name.
    """

    name: str
    curves: dict[str, Curve]
    numbers: Mapping[str, Any]

    def values(self, metrics: list[str]) -> list[str]:
        """The numbers of all trainings, then the last value of each metric, as text; empty where there is none."""
        last = [self.curves[name][-1][1] if self.curves.get(name) else None for name in metrics]
        return [_shown(value) for value in (*map(self.numbers.get, _OF_TRAININGS), *last)]


def find_results(folder: Path) -> list[Result]:
    """All results in a folder and below it: a JSON file with a command, and a Markdown file of the same name.

    Raises:
        InputError: for a folder that does not exist or has no results.
    """
    if not folder.is_dir():
        raise InputError(f"folder: expected a folder of results, got {folder}, which is none")
    found = []
    for path in sorted(folder.rglob("*.json")):
        if (result := _read(path, folder)) is not None:
            found.append(result)
    if not found:
        raise InputError(f"folder: expected results (a .json beside its .md) below it, got none in {folder}")
    return found


def runs_page(found: list[Result]) -> str:
    """One HTML page of all results."""
    trainings = [training for result in found for training in trainings_of(result.name, result.results)]
    metrics = sorted({metric for training in trainings for metric, curve in training.curves.items() if curve})
    return render(
        "runs.html.j2",
        title=f"{len(found)} results",
        figures=[figure_of(f"{metric} against updates", _drawn(metric, trainings)) for metric in metrics],
        metrics=[*_OF_TRAININGS, *metrics],
        trainings=[{"name": training.name, "values": training.values(metrics)} for training in trainings],
        results=[
            {"name": each.name, "date": _date(each.results), **page_fields(each.results, each.text, each.folder)}
            for each in found
        ],
    )


def trainings_of(name: str, results: Mapping[str, Any]) -> Iterator[Training]:
    """The trainings of results: each model of a pretraining, each seed of a fine-tuning, a distillation."""
    if results["command"] == "pretrain":
        for model, found in results["models"].items():
            several = f", {model}" if len(results["models"]) > 1 else ""
            yield Training(f"{name}{several}", {"validation loss": found["curve"]}, found)
    elif results["command"] == "finetune":
        for run in results["runs"]:
            yield Training(f"{name}, seed {run['seed']}", run["curve"], run)
    elif results["command"] == "distill":
        yield Training(name, results["curve"], results)


def _read(path: Path, folder: Path) -> Result | None:
    """The results of a JSON file; None for another file. Results that cannot be shown are left out with a warning."""
    report = path.with_suffix(".md")
    if not report.is_file():
        return None
    name = path.parent.relative_to(folder).as_posix()
    try:
        with input_errors("expected results of linformer"):
            results = json.loads(path.read_text(encoding="utf-8"))
            if "command" not in results:
                return None
            text = report.read_text(encoding="utf-8")
            result = Result(folder.resolve().name if name == "." else name, path.parent, results, text)
            _check(result)
    except (InputError, RecursionError) as error:
        logger.warning("left out: %s: %s", path, error)
        return None
    return result


def _check(result: Result) -> None:
    """Use everything that a page shows, so that an error is raised for anything that is not as expected."""
    _date(result.results)
    page_fields(result.results, result.text, result.folder)
    for training in trainings_of(result.name, result.results):
        training.values(list(training.curves))
        for curve in training.curves.values():
            for update, value in curve:
                float(update) + float(value or 0)  # None: not finite


def _drawn(metric: str, trainings: list[Training]) -> bytes:
    """The curves of a metric, of the first six trainings that have it, as the content of a PNG file."""
    figure, axes = new_figure((8, 4))
    for training in [training for training in trainings if training.curves.get(metric)][:_MOST_LINES]:
        updates, values = zip(*training.curves[metric], strict=True)
        axes.plot(updates, values, marker=".", label=training.name)
    axes.set(xlabel="updates", ylabel=metric)
    axes.legend(fontsize="small")
    show_grid(axes)
    return png_of(figure)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _date(results: Mapping[str, Any]) -> str:
    return str(results.get("environment", {}).get("date", ""))
