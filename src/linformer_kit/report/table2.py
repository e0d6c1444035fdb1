"""Table 2 for the measured models, in the paper's layout, and the cost of each row."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from linformer_kit.data.tasks import TASKS
from linformer_kit.report.base import environment_line, table, write_report
from linformer_kit.report.numbers import mean_and_deviation, mebibytes
from linformer_kit.report.table2_figures import draw_table2

Cell = dict[str, Any]
Run = dict[str, Any]  # one training of a cell
Chosen = dict[tuple[str, str], Cell]  # by model and task


def write_table2_report(results: dict[str, Any], folder: Path, chosen: Chosen) -> str:
    """Write `table2.json`, `table2.md`, `accuracy.png` and `accuracy.svg`.

    Args:
        results: Results of `bench table2` so far.
        folder: Output folder.
        chosen: The cell to show for each model and task.

    Returns:
        The Markdown text.
    """
    draw = partial(draw_table2, chosen=chosen)
    return write_report(results, folder, "table2", partial(table2_markdown, chosen=chosen), draw)


def table2_markdown(results: dict[str, Any], chosen: Chosen) -> str:
    """Accuracy, F1 if the task has it, learning rates, time and memory, as Markdown.

    Args:
        results: The content of a `table2.json`.
        chosen: The cell to show for each model and task.
    """
    lines = ["# Fine-tuning on the tasks of Table 2", "", environment_line(results["environment"]), ""]
    lines += [*_training(results), "", *_accuracies(results, chosen), *_differences(results, chosen)]
    lines += ["", *_costs(results, chosen), "", *_of_paper(results)]
    return "\n".join(lines) + "\n"


def _training(results: dict[str, Any]) -> list[str]:
    """How the models were trained and chosen, in a paragraph."""
    settings = results["settings"]
    limit = settings["max_train_samples"]
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    passes = settings["num_train_epochs"]
    factors = _factors(settings)
    some = " or ".join(f"{factor:g}" for factor in factors)
    on_part = ""
    if any(cell.get("tuning") for cell in results["cells"]):
        on_part = f"Learning rates are compared with up to {settings['tuning_samples']:,} texts. "
    slowly = f", E and F at {some} of the learning rate" if factors != [1] else ""
    more = "; more with E and F, which have rates of their own" if len(factors) > 1 else ""
    return [
        f"{'All' if limit is None else f'Up to {limit:,}'} training texts, "
        f"{passes:g} epoch{'' if passes == 1 else 's'}, batch {batch}{slowly}; {_seeds(settings)}. "
        f"{on_part}Accuracy in percent on the validation texts (IMDB: the test texts). Learning rate and checkpoint "
        f"are chosen on the same texts, so all figures are slightly too high{more}."
    ]


def _accuracies(results: dict[str, Any], chosen: Chosen) -> list[str]:
    """Accuracy of each model on each task, and F1 on QQP."""
    tasks, settings = results["tasks"], results["settings"]
    rows = []
    for model in results["models"]:
        cells = [chosen.get((model, task)) for task in tasks]
        means = [statistics.fmean(_values(cell, "accuracy")) for cell in cells if cell]
        average = f"{statistics.fmean(means):.2f}" if len(means) == len(tasks) else ""
        parameters = next((f"{cell['parameters']:,}" for cell in cells if cell), "")
        rows.append([model, parameters, *(_spread(settings, cell, "accuracy") for cell in cells), average])
    lines = table(["model", "parameters", *(TASKS[task].title for task in tasks), "average"], rows)
    if "qqp" in tasks:
        f1 = [[model, _spread(settings, chosen.get((model, "qqp")), "f1")] for model in results["models"]]
        lines += ["", "F1 of duplicates on QQP, in percent:", "", *table(["model", "F1"], f1)]
    return lines


def _costs(results: dict[str, Any], chosen: Chosen) -> list[str]:
    """Rates, time and memory of each model on each task, and which rates diverged."""
    rows = [
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
        for model in results["models"]
        for task in results["tasks"]
        if (cell := chosen.get((model, task)))
    ]
    lines = [
        "## Cost",
        "",
        "Time and texts per second of training, without evaluation; peak memory of the whole run minus the memory in "
        f"use before it, in MiB.{_how(chosen)}",
        "",
        *table(
            ["model", "task", "learning rate (tried)", "texts", "texts/s", "seconds", "memory, MiB", "texts cut"], rows
        ),
    ]
    if diverged := [_diverged(cell) for cell in results["cells"] if cell["diverged"]]:
        lines += ["", f"Diverged: {'; '.join(diverged)}."]
    return lines


def _diverged(cell: Cell) -> str:
    """Model, task, rate and, of results that have it, the seed of a cell whose training diverged."""
    seed = f", seed {cell['diverged_seed']}" if "diverged_seed" in cell else ""
    comparison = " (in the comparison of rates)" if cell.get("tuning") else ""
    return f"{cell['model']}, {TASKS[cell['task']].title}, {cell['learning_rate']:g}{seed}{comparison}"


def _of_paper(results: dict[str, Any]) -> list[str]:
    """The results of the paper on these tasks."""
    tasks = results["tasks"]
    rows = [
        [str(row["seq_len"]), row["model"], *(f"{row['scores'][task]:.1f}" for task in tasks)]
        for row in results["paper"]
    ]
    return [
        "## Results of the paper",
        "",
        "Models of base size, pretrained for 250,000 updates on 3.3 billion words; all training texts; n, k in tokens.",
        "",
        *table(["n", "model", *(TASKS[task].title for task in tasks)], rows),
    ]


def _how(chosen: Chosen) -> str:
    """On which devices the runs were measured, and how many at a time, where that is not the same for all or usual."""
    runs = [run for cell in chosen.values() for run in cell["runs"]]
    ways = dict.fromkeys((run["processes"], run["threads"]) for run in runs if run.get("processes", 1) > 1)
    devices = dict.fromkeys(run["device"] for run in runs if "device" in run)
    text = "".join(
        f" Measured with {processes} trainings at a time, each with {threads} of the threads."
        for processes, threads in ways
    )
    if ways and len({run.get("processes", 1) for run in runs}) > 1:
        text += " Others were measured alone."
    return text + (f" Measured on {' and '.join(devices)}." if len(devices) > 1 else "")


def _factors(settings: dict[str, Any]) -> list[float]:
    """The learning rates of E and F that were tried, as multiples; earlier versions tried one."""
    return settings.get("projection_learning_rate_factors") or [settings.get("projection_learning_rate_factor", 1.0)]


def _differences(results: dict[str, Any], chosen: Chosen) -> list[str]:
    """Each model but the first against the first: paired by seeds, and by the texts of the first seed."""
    first, *others = results["models"]
    seed = results["settings"]["seeds"][0]
    rows = []
    for model in others:
        for task in results["tasks"]:
            pair = [chosen.get((name, task)) for name in (model, first)]
            if all(cell and all(run.get("right") for run in cell["runs"]) for cell in pair):
                ours, theirs = ({run["seed"]: run for run in cell["runs"]} for cell in pair if cell)
                if ours.keys() & theirs.keys():
                    rows.append([model, TASKS[task].title, *_paired(ours, theirs, seed)])
    if not rows:
        return []
    return [
        "",
        f"## Differences to {first}",
        "",
        "Points of accuracy, paired by seeds. Then the validation texts that only one of the two models classifies "
        "right with the first seed, and the probability of such a difference or a larger one if both were equally good "
        "(McNemar's exact test).",
        "",
        *table(["model", "task", "difference", "only the model", f"only {first}", "p"], rows),
    ]


def _paired(ours: dict[int, Run], theirs: dict[int, Run], first: int) -> list[str]:
    """The difference of two models by their runs of each seed, and what each alone has right with the first seed."""
    both = [seed for seed in ours if seed in theirs]
    by_seed = [100 * (ours[seed]["metrics"]["accuracy"] - theirs[seed]["metrics"]["accuracy"]) for seed in both]
    difference = mean_and_deviation(by_seed, 2, sign="+")
    if first not in both:
        return [difference, "", "", ""]
    right = [
        np.unpackbits(np.frombuffer(bytes.fromhex(runs[first]["right"]), np.uint8)).astype(bool)
        for runs in (ours, theirs)
    ]
    only_ours, only_theirs = int((right[0] & ~right[1]).sum()), int((~right[0] & right[1]).sum())
    p = binomtest(only_ours, only_ours + only_theirs).pvalue if only_ours + only_theirs else 1.0
    return [difference, f"{only_ours:,}", f"{only_theirs:,}", f"{p:.3g}"]


def _rates(results: dict[str, Any], cell: Cell) -> str:
    """The chosen learning rate and, if several were tried, all of them in brackets; if needed with that of E and F."""
    same = [each for each in results["cells"] if (each["model"], each["task"]) == (cell["model"], cell["task"])]
    same = [each for each in same if each.get("tuning")] or same
    several = len({each.get("projection_learning_rate_factor") for each in same}) > 1

    def shown(each: Cell) -> str:
        own = f" × {each['projection_learning_rate_factor']:g}" if several else ""
        return f"{each['learning_rate']:g}{own}"

    tried = sorted(same, key=lambda each: (each["learning_rate"], each.get("projection_learning_rate_factor")))
    every = f" ({', '.join(map(shown, tried))})" if len(tried) > 1 else ""
    return f"{shown(cell)}{every}"


def _values(cell: dict[str, Any], metric: str) -> list[float]:
    return [100 * run["metrics"][metric] for run in cell["runs"]]


def _of_runs(cell: dict[str, Any], name: str) -> list[float]:
    return [run[name] for run in cell["runs"]]


def _spread(settings: dict[str, Any], cell: dict[str, Any] | None, metric: str) -> str:
    """Mean and standard deviation, and how many seeds that are if some are missing."""
    if cell is None:
        return ""
    values = _values(cell, metric)
    meant = 1 if cell["task"] in settings["one_seed"] else len(settings["seeds"])
    missing = f" ({len(values)} of {meant} seeds)" if len(values) < meant else ""
    return mean_and_deviation(values, 2) + missing


def _seeds(settings: dict[str, Any]) -> str:
    seeds = settings["seeds"]
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    tasks = [TASKS[task].title for task in settings["one_seed"] if task in settings["tasks"]]
    alone = f" ({', '.join(tasks)}: seed {seeds[0]})" if tasks else ""
    return f"means over seeds {', '.join(map(str, seeds))}{alone}, ± sample standard deviation"
