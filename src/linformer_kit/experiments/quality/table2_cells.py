"""The cells of `table2.json`: a model, a task and rates with the trainings so far; and the choice of the best rates."""

from __future__ import annotations

import dataclasses
from typing import Any

from linformer_kit.report.table2 import Cell

Key = tuple[str, str]  # model, task
Candidate = tuple[str, str, float, float | None]  # and learning rate, and that of E and F as a multiple of it


@dataclasses.dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        candidate: Model, task and rates.
        seed: Seed of all random numbers.
        tuning: Whether it has `tuning_samples` texts at most, so that it only compares rates.
    """

    candidate: Candidate
    seed: int
    tuning: bool = False


def new_cell(job: Job) -> Cell:
    """The cell of a job without any training."""
    names = ("model", "task", "learning_rate", "projection_learning_rate_factor")
    return {**dict(zip(names, job.candidate, strict=True)), "tuning": job.tuning, "diverged": False, "runs": []}


def cell_of(cells: list[Cell], job: Job) -> Cell | None:
    """The cell that a job belongs to, if it is there."""
    wanted = (job.candidate, job.tuning)
    return next((cell for cell in cells if (candidate_of(cell), is_tuning(cell)) == wanted), None)


def is_done(cells: list[Cell], job: Job) -> bool:
    """Whether a job is done, or left because another seed diverged."""
    cell = cell_of(cells, job)
    return cell is not None and (cell["diverged"] or job.seed in {run["seed"] for run in cell["runs"]})


def candidate_of(cell: Cell) -> Candidate:
    """Model, task and rates; the multiple is None in results of versions that did not vary it."""
    return cell["model"], cell["task"], cell["learning_rate"], cell.get("projection_learning_rate_factor")


def is_tuning(cell: Cell) -> bool:
    """Whether the cell only compares rates; earlier versions had no such cells."""
    return bool(cell.get("tuning"))


def order_of(results: dict[str, Any], cell: Cell) -> tuple[Any, ...]:
    """Sorts cells by task and model, in the order of the results, and by rates, those of the tuning first.

    Results of earlier versions may have cells of further tasks and models; they come last.
    """
    tasks, models = list(results["tasks"]), list(results["models"])
    model, task, rate, factor = candidate_of(cell)
    task_place = tasks.index(task) if task in tasks else len(tasks)
    model_place = models.index(model) if model in models else len(models)
    return task_place, model_place, not is_tuning(cell), rate, factor or 0


def chosen_candidates(results: dict[str, Any]) -> dict[Key, Candidate]:
    """For each model and task, the rates with the best metric for the first seed, in the tuning if there was one.

    Rates at which the first seed diverged do not count, also if that was only with all texts.

    Args:
        results: The content of a `table2.json`.
    """
    cells, first = results["cells"], results["settings"]["seeds"][0]
    with_first = [cell for cell in cells if first in {run["seed"] for run in cell["runs"]}]
    failed = {candidate_of(cell) for cell in cells if cell["diverged"] and cell not in with_first}
    tuned = {_key(cell) for cell in cells if is_tuning(cell)}
    best: dict[Key, Cell] = {}
    for cell in with_first:
        key = _key(cell)
        counts = candidate_of(cell) not in failed and is_tuning(cell) == (key in tuned)
        if counts and (key not in best or _first_metric(cell) > _first_metric(best[key])):
            best[key] = cell
    return {key: candidate_of(cell) for key, cell in best.items()}


def chosen_cells(results: dict[str, Any]) -> dict[Key, Cell]:
    """The cell at the best rates by (model, task), with its trainings for the seeds of the settings.

    Cells without such trainings are left out.

    Args:
        results: The content of a `table2.json`.
    """
    chosen, seeds = chosen_candidates(results), results["settings"]["seeds"]
    shown: dict[Key, Cell] = {}
    for cell in results["cells"]:
        runs = [run for run in cell["runs"] if run["seed"] in seeds]
        if runs and not is_tuning(cell) and chosen.get(_key(cell)) == candidate_of(cell):
            shown[_key(cell)] = cell | {"runs": runs}
    return shown


def _key(cell: Cell) -> Key:
    return cell["model"], cell["task"]


def _first_metric(cell: Cell) -> float:
    return cell["runs"][0]["metrics"][cell["metrics"][0]]
