"""Table 2 with the models at hand, in the paper's layout, and what each row costs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from linformer_kit.data.tasks import TASKS
from linformer_kit.report.base import table, write_report
from linformer_kit.report.ceiling import environment_line


def write_table2_report(results: dict[str, Any], folder: Path) -> str:
    """Write `table2.json` and `table2.md`.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "table2", table2_markdown)


def table2_markdown(results: dict[str, Any]) -> str:
    """Accuracy, F1 where a task has it, learning rates, time and memory."""
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
        f"{passes:g} pass{'' if passes == 1 else 'es'}, batch {batch}{slowly}; {_seeds(settings)}. "
        "Accuracy in percent on the texts for validation, of IMDB those of the test. Learning rate and checkpoint are "
        "the best on the same texts, so all figures flatter a little, and alike.",
        "",
    ]
    rows = []
    for model in models:
        cells = [_cell(results, model, task) for task in tasks]
        means = [statistics.fmean(_values(cell, "accuracy")) for cell in cells if cell]
        average = f"{statistics.fmean(means):.2f}" if len(means) == len(tasks) else ""
        rows.append([model, *(_spread(cell, "accuracy") for cell in cells), average])
    lines += table(["model", *(TASKS[task].title for task in tasks), "average"], rows)
    if "qqp" in tasks:
        f1 = [[model, _spread(_cell(results, model, "qqp"), "f1")] for model in models]
        lines += ["", "F1 of duplicates on QQP, in percent:", "", *table(["model", "F1"], f1)]
    lines += ["", "## What it costs", ""]
    lines += [
        "Training alone, without evaluation: texts a second; and the highest memory of the whole run over what the "
        "process had before it, in MiB.",
        "",
    ]
    costs = []
    for model in models:
        for task in tasks:
            cell = _cell(results, model, task)
            if cell:
                costs.append(
                    [
                        model,
                        TASKS[task].title,
                        _rates(results, cell),
                        f"{cell['texts']['train']:,}",
                        f"{statistics.median(_of_runs(cell, 'texts_per_second')):,.0f}",
                        f"{statistics.median(_of_runs(cell, 'seconds')):,.0f}",
                        f"{cell['peak_bytes'] / 2**20:,.0f}",
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
    lines += ["", "## The paper's", ""]
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


def best_rate(results: dict[str, Any], model: str, task: str) -> float | None:
    """The learning rate with the best metric for the first seed; None where none was survived."""
    cell = _cell(results, model, task)
    return cell["learning_rate"] if cell else None


def _rates(results: dict[str, Any], cell: dict[str, Any]) -> str:
    """The chosen learning rate, and in brackets all that were tried where there were several."""
    same = [each for each in results["cells"] if (each["model"], each["task"]) == (cell["model"], cell["task"])]
    tried = sorted(each["learning_rate"] for each in same)
    every = f" ({', '.join(f'{rate:g}' for rate in tried)})" if len(tried) > 1 else ""
    return f"{cell['learning_rate']:g}{every}"


def _cell(results: dict[str, Any], model: str, task: str) -> dict[str, Any] | None:
    """That of the best rate, once it is there."""
    found = [cell for cell in results["cells"] if (cell["model"], cell["task"]) == (model, task) and cell["runs"]]
    return max(found, key=_first_metric, default=None)


def _first_metric(cell: dict[str, Any]) -> float:
    return cell["runs"][0]["metrics"][cell["metrics"][0]]


def _values(cell: dict[str, Any], metric: str) -> list[float]:
    return [100 * run["metrics"][metric] for run in cell["runs"]]


def _of_runs(cell: dict[str, Any], name: str) -> list[float]:
    return [run[name] for run in cell["runs"]]


def _spread(cell: dict[str, Any] | None, metric: str) -> str:
    if cell is None:
        return ""
    values = _values(cell, metric)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _seeds(settings: dict[str, Any]) -> str:
    seeds = settings["seeds"]
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    tasks = [TASKS[task].title for task in settings["one_seed"] if task in settings["tasks"]]
    alone = f" ({', '.join(tasks)}: seed {seeds[0]})" if tasks else ""
    return f"means over seeds {', '.join(map(str, seeds))}{alone}, ± the sample's standard deviation"
