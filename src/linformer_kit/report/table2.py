"""Table 2 for the measured models, in the paper's layout, and the cost of each row."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from linformer_kit.data.tasks import TASKS
from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.numbers import mean_and_deviation, mebibytes

Cell = dict[str, Any]
Chosen = dict[tuple[str, str], Cell]  # by model and task


def write_table2_report(results: dict[str, Any], folder: Path, chosen: Chosen) -> str:
    """Write `table2.json` and `table2.md`.

    Args:
        results: Results of `bench table2` so far.
        folder: Output folder.
        chosen: The cell to show for each model and task.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "table2", partial(table2_markdown, chosen=chosen))


def table2_markdown(results: dict[str, Any], chosen: Chosen) -> str:
    """Accuracy, F1 if the task has it, learning rates, time and memory, as Markdown.

    Args:
        results: The content of a `table2.json`.
        chosen: The cell to show for each model and task.
    """
    tasks, models = results["tasks"], results["models"]
    settings = results["settings"]
    limit = settings["max_train_samples"]
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    passes = settings["num_train_epochs"]
    factor = settings.get("projection_learning_rate_factor", 1.0)
    slowly = f", E and F at {factor:g} of the learning rate" if factor != 1 else ""
    lines = [
        "# Fine-tuning on the tasks of Table 2",
        "",
        environment_line(results["environment"]),
        "",
        f"{'All' if limit is None else f'Up to {limit:,}'} training texts, "
        f"{passes:g} epoch{'' if passes == 1 else 's'}, batch {batch}{slowly}; {_seeds(settings)}. "
        "Accuracy in percent on the validation texts (IMDB: the test texts). Learning rate and checkpoint are chosen "
        "on the same texts, so all figures are slightly too high, for all models alike.",
        "",
    ]
    rows = []
    for model in models:
        cells = [chosen.get((model, task)) for task in tasks]
        means = [statistics.fmean(_values(cell, "accuracy")) for cell in cells if cell]
        average = f"{statistics.fmean(means):.2f}" if len(means) == len(tasks) else ""
        rows.append([model, *(_spread(cell, "accuracy") for cell in cells), average])
    lines += table(["model", *(TASKS[task].title for task in tasks), "average"], rows)
    if "qqp" in tasks:
        f1 = [[model, _spread(chosen.get((model, "qqp")), "f1")] for model in models]
        lines += ["", "F1 of duplicates on QQP, in percent:", "", *table(["model", "F1"], f1)]
    lines += ["", "## Cost", ""]
    lines += [
        "Time and texts per second of training, without evaluation; peak memory of the whole run minus the memory in "
        "use before it, in MiB.",
        "",
    ]
    costs = []
    for model in models:
        for task in tasks:
            cell = chosen.get((model, task))
            if cell:
                costs.append(
                    [
                        model,
                        TASKS[task].title,
                        _rates(results, cell),
                        f"{cell['texts']['train']:,}",
                        f"{statistics.median(_of_runs(cell, 'texts_per_second')):,.0f}",
                        f"{statistics.median(_of_runs(cell, 'seconds')):,.0f}",
                        mebibytes(cell["peak_bytes"]),
                        f"{cell['texts']['cut']['train']['texts']:,}",
                    ]
                )
    diverged = [
        f"{cell['model']}, {TASKS[cell['task']].title}, {cell['learning_rate']:g}"
        for cell in results["cells"]
        if cell["diverged"]
    ]
    header = ["model", "task", "learning rate (tried)", "texts", "texts/s", "seconds", "memory, MiB", "texts cut"]
    lines += table(header, costs)
    if diverged:
        lines += ["", f"Diverged: {'; '.join(diverged)}."]
    lines += ["", "## Results of the paper", ""]
    lines += [
        "Models of base size, pretrained for 250,000 updates on 3.3 billion words; all training texts; n, k in tokens.",
        "",
    ]
    theirs = [
        [str(row["seq_len"]), row["model"], *(f"{row['scores'][task]:.1f}" for task in tasks)]
        for row in results["paper"]
    ]
    lines += table(["n", "model", *(TASKS[task].title for task in tasks)], theirs)
    return "\n".join(lines) + "\n"


def _rates(results: dict[str, Any], cell: dict[str, Any]) -> str:
    """The chosen learning rate and, if several were tried, all of them in brackets."""
    same = [each for each in results["cells"] if (each["model"], each["task"]) == (cell["model"], cell["task"])]
    tried = sorted(each["learning_rate"] for each in same)
    every = f" ({', '.join(f'{rate:g}' for rate in tried)})" if len(tried) > 1 else ""
    return f"{cell['learning_rate']:g}{every}"


def _values(cell: dict[str, Any], metric: str) -> list[float]:
    return [100 * run["metrics"][metric] for run in cell["runs"]]


def _of_runs(cell: dict[str, Any], name: str) -> list[float]:
    return [run[name] for run in cell["runs"]]


def _spread(cell: dict[str, Any] | None, metric: str) -> str:
    if cell is None:
        return ""
    return mean_and_deviation(_values(cell, metric), 2)


def _seeds(settings: dict[str, Any]) -> str:
    seeds = settings["seeds"]
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    tasks = [TASKS[task].title for task in settings["one_seed"] if task in settings["tasks"]]
    alone = f" ({', '.join(tasks)}: seed {seeds[0]})" if tasks else ""
    return f"means over seeds {', '.join(map(str, seeds))}{alone}, ± sample standard deviation"
