"""Table 2: accuracy of several encoders after fine-tuning on the tasks of section 5.2, and its cost."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from linformer_kit.data.labelled import load_labelled
from linformer_kit.data.tasks import TASKS
from linformer_kit.environment import best_device
from linformer_kit.errors import DivergedError, InputError
from linformer_kit.experiments import paper
from linformer_kit.experiments.experiment import Experiment, check_output, check_same_settings, earlier_file, require
from linformer_kit.experiments.measure import in_fresh_process, peak_bytes
from linformer_kit.experiments.parallel import run_all
from linformer_kit.experiments.quality.table2_cells import (
    Cell,
    Job,
    Key,
    Place,
    cell_of,
    chosen_cells,
    chosen_places,
    is_done,
    new_cell,
    order_of,
    place_of,
)
from linformer_kit.files.manifest import file_fingerprint, read_json
from linformer_kit.interop.loading import check_model_folder
from linformer_kit.report.base import file_name
from linformer_kit.report.table2 import write_table2_report
from linformer_kit.settings import FinetuneSettings, is_local_path, portable, recorded_name
from linformer_kit.settings.bench import Table2Settings
from linformer_kit.training import finetune
from linformer_kit.training.memory import keep_freed_memory
from linformer_kit.training.optimizer import projection_parameters

# Settings that are passed to `linformer finetune`.
_PASSED = (
    "data_dir",
    "max_train_samples",
    "max_eval_samples",
    "max_length",
    "resize_to",
    "resize_mode",
    "num_train_epochs",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "warmup_steps",
    "bf16",
)
_KEPT = ("seed", "metrics", "updates", "best_updates", "seconds", "texts_per_second", "right")


def main(settings: Table2Settings) -> None:
    """Fine-tune all models on all tasks and print the table."""
    table2(settings).show()


def table2(settings: Table2Settings) -> Experiment:
    """Fine-tune each model on each task, each time in a fresh process.

    If there are several learning rates, also of E and F, all are tried with the first seed, with `tuning_samples` texts
    if given; each model and task is trained with all seeds at the rates with the best metric. Rates at which training
    diverges are recorded and skipped.

    Returns:
        The results, as in `table2.json`, in the folder that also holds all classifiers.

    Raises:
        InputError: for models, tasks and settings that cannot be used, before any training.
    """
    names, projects = _check(settings)
    fields: dict[str, Any] = {
        "models": {name: recorded_name(model) for name, model in names.items()},
        "fingerprints": {name: _fingerprint(model) for name, model in names.items()},
        "tasks": list(settings.tasks),
        "paper": [
            {"seq_len": seq_len, "model": model, "scores": dict(zip(TASKS, scores, strict=True))}
            for (seq_len, model), scores in paper.SCORES.items()
        ],
        "cells": [],
        "complete": False,
    }
    recorded = portable(settings)
    earlier = earlier_file(settings.output_dir, "table2", resume=settings.resume)
    if earlier is not None:
        fields["cells"] = _earlier_cells(read_json(earlier), fields | {"settings": recorded}, earlier)
    experiment = Experiment(
        "bench table2",
        settings.output_dir,
        device=best_device(),
        settings=recorded,
        write=_write,
        fields=fields,
    )
    experiment.save()  # so that the folder can be resumed
    with experiment, tqdm(total=0, unit=" trainings", dynamic_ncols=True) as bar:
        places = {
            (name, task): _places(settings, experiment.results["cells"], name, task, projects[name])
            for task in settings.tasks
            for name in names
        }
        first, tuning = settings.seeds[0], settings.tuning_samples is not None
        several = [each for each in places.values() if len(each) > 1]
        compared = [Job(place, first, tuning) for each in several for place in each]
        _run(settings, experiment, _left(experiment, compared), bar)
        while left := _left(experiment, _best(settings, experiment.results, places)):  # again if one of them diverges
            _run(settings, experiment, left, bar)
        experiment.finish()
    return experiment


def _places(settings: Table2Settings, cells: list[Cell], name: str, task: str, projects: bool) -> list[Place]:
    """What is compared for a model and a task: the rates of these settings, and those in earlier results."""
    earlier = [place_of(cell) for cell in cells if (cell["model"], cell["task"]) == (name, task)]
    return list(dict.fromkeys([*earlier, *((name, task, *rates) for rates in _rates(settings, projects))]))


def _left(experiment: Experiment, jobs: list[Job]) -> list[Job]:
    """Those of some trainings that are not done."""
    return [job for job in jobs if not is_done(experiment.results["cells"], job)]


def _best(settings: Table2Settings, results: dict[str, Any], places: dict[Key, list[Place]]) -> list[Job]:
    """The trainings at the best rates."""
    only = {key: several[0] for key, several in places.items() if len(several) == 1}
    chosen = chosen_places(results) | only
    return [
        Job(chosen[key], seed)
        for key in places
        if key in chosen
        for seed in (settings.seeds[:1] if key[1] in settings.one_seed else settings.seeds)
    ]


def _write(results: dict[str, Any], folder: Path) -> str:
    return write_table2_report(results, folder, chosen_cells(results))


def _rates(settings: Table2Settings, projects: bool) -> list[tuple[float, float]]:
    """The learning rates to try, each with that of E and F as a multiple; one multiple for a model without them."""
    factors = settings.projection_learning_rate_factors
    return [(rate, factor) for rate in settings.learning_rates for factor in (factors if projects else factors[:1])]


def _run(settings: Table2Settings, experiment: Experiment, jobs: list[Job], bar: tqdm) -> None:
    """Run some trainings, several at a time, and write the results after each."""
    bar.total += len(jobs)
    bar.refresh()
    folder, threads = experiment.folder.resolve(), max(1, torch.get_num_threads() // settings.processes)
    quiet = settings.processes > 1

    def start(job: Job) -> Future[tuple[dict[str, Any], int]]:
        return pool.submit(in_fresh_process, _finetune, _finetune_settings(settings, job, folder), threads, quiet)

    def record(job: Job, future: Future[tuple[dict[str, Any], int]]) -> None:
        try:
            outcome = future.result()
        except DivergedError:
            outcome = None
        _record(experiment, job, outcome, {"threads": threads, "processes": settings.processes})
        bar.update()

    with ThreadPoolExecutor(settings.processes) as pool:  # its threads only wait for processes
        run_all(pool, jobs, start, record)


def _record(experiment: Experiment, job: Job, outcome: tuple[dict[str, Any], int] | None, how: dict[str, int]) -> None:
    """Write what a training gave into its cell; None if it diverged."""
    results = experiment.results
    known = cell_of(results["cells"], job)
    cell = new_cell(job) if known is None else known
    if outcome is None:
        cell["diverged"] = True
    else:
        found, memory = outcome
        (run,) = found["runs"]
        order = {seed: place for place, seed in enumerate(results["settings"]["seeds"])}
        runs = [*cell["runs"], {kept: run.get(kept) for kept in _KEPT}]
        cell |= {
            "parameters": found["model"]["parameters"],
            "texts": found["texts"],
            "metrics": found["metrics"],
            "peak_bytes": max(memory, cell.get("peak_bytes", 0)),
            **how,
            "runs": sorted(runs, key=lambda run: order.get(run["seed"], len(order))),
        }
    if known is None:
        results["cells"].append(cell)
        results["cells"].sort(key=lambda cell: order_of(results, cell))
    experiment.save()


def _finetune(settings: FinetuneSettings, threads: int, quiet: bool) -> tuple[dict[str, Any], int]:
    """Runs in the fresh process: the results, and the peak memory minus the memory in use before."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    with contextlib.redirect_stderr(io.StringIO()) if quiet else contextlib.nullcontext():
        memory = peak_bytes(lambda: found.append(finetune.finetune(settings)[0]), best_device())
    return found[0], memory


def _finetune_settings(settings: Table2Settings, job: Job, folder: Path | None = None) -> FinetuneSettings:
    """The settings of a job, with its place below `folder` if it is given."""
    name, task, rate, factor = job.place
    assert factor is not None
    passed = {field: getattr(settings, field) for field in _PASSED}
    if job.tuning:
        few, most = settings.tuning_samples, settings.max_eval_samples
        passed |= {"max_train_samples": few, "max_eval_samples": few if most is None or few is None else min(few, most)}
    own = f"{task}-{rate:g}-{factor:g}{'-tuning' if job.tuning else ''}-seed{job.seed}"
    return FinetuneSettings(
        model=_names(settings)[name],
        task=task,  # type: ignore[arg-type]
        seeds=[job.seed],
        learning_rate=rate,
        projection_learning_rate_factor=factor,
        output_dir=None if folder is None else str(folder / name / own),
        cache_dir=settings.cache_dir,
        resume=folder is not None,
        report_to="none",
        **passed,
    )


def _names(settings: Table2Settings) -> dict[str, str]:
    """The models by name."""
    return dict(zip(_given_names(settings), settings.models, strict=True))


def _given_names(settings: Table2Settings) -> list[str]:
    return settings.names or [Path(model).name for model in settings.models]


def _earlier_cells(before: dict[str, Any], now: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The cells of the results to resume; models, tasks, rates and seeds may be added."""
    check_same_settings(
        before, {name: now["settings"][name] for name in (*_PASSED, "one_seed", "tuning_samples")}, path
    )
    if before["settings"]["seeds"][0] != now["settings"]["seeds"][0]:
        raise InputError(f"resume: expected the first seed of {path}, got {now['settings']['seeds'][0]}")
    for name, model in now["models"].items():
        same = (before["models"].get(name), before["fingerprints"].get(name)) == (model, now["fingerprints"][name])
        if name in before["models"] and not same:
            raise InputError(f"resume: expected the model {name} of {path}, {before['models'][name]}, got another one")
    factor = before["settings"].get("projection_learning_rate_factor")  # of earlier versions, which tried one
    return [{"projection_learning_rate_factor": factor} | cell for cell in before["cells"]]


def _fingerprint(model: str) -> str | None:
    """Hexadecimal hash of the weights in a folder; None for models on the hub."""
    if not is_local_path(model):
        return None
    content = hashlib.sha256()
    for path in sorted(Path(model).glob("*.safetensors")):
        content.update(bytes.fromhex(file_fingerprint(path)))
    return content.hexdigest()


def _check(settings: Table2Settings) -> tuple[dict[str, str], dict[str, bool]]:
    """Check everything that would fail later; return the models by name, and whether they have E and F, or W_P."""
    if settings.names is not None and len(settings.names) != len(settings.models):
        raise InputError(f"names: expected {len(settings.models)}, one for each model, got {len(settings.names)}")
    names = _given_names(settings)
    if len({file_name(name) for name in names}) < len(names):
        raise InputError(f"names: expected different names for the models, got {', '.join(names)}; give --names")
    for name in names:
        if not name or name != Path(name).name:
            raise InputError(f"names: expected valid folder names, got {name!r}")
    for setting in ("models", "tasks", "seeds", "learning_rates", "projection_learning_rate_factors"):
        values = getattr(settings, setting)
        if not values or len(set(values)) < len(values):
            raise InputError(f"{setting}: expected one or more, each once, got {values}")
    for setting, tasks in (("tasks", settings.tasks), ("one_seed", settings.one_seed)):
        if not set(tasks) <= set(TASKS):
            raise InputError(f"{setting}: expected some of {', '.join(TASKS)}, got {', '.join(tasks)}")
    earlier = earlier_file(settings.output_dir, "table2", resume=settings.resume)
    check_output(settings.output_dir, resume=earlier is not None)
    for model in filter(is_local_path, settings.models):
        check_model_folder(Path(model))
    require(settings.processes > 0, "processes", "1 or more", settings.processes)
    most, few = settings.max_train_samples, settings.tuning_samples
    require(few is None or few > 0, "tuning_samples", "1 or more", few)
    require(few is None or most is None or few <= most, "tuning_samples", f"max_train_samples {most} or less", few)
    rates = _rates(settings, projects=True)
    for each in rates:
        finetune.check(_finetune_settings(settings, Job((names[0], settings.tasks[0], *each), settings.seeds[0])))
    for task in settings.tasks:
        job = Job((names[0], task, *rates[0]), settings.seeds[0])
        if few is not None:
            load_labelled(_finetune_settings(settings, dataclasses.replace(job, tuning=True)))
        texts = load_labelled(_finetune_settings(settings, job))
    projects = {}
    for name in names:
        own = _finetune_settings(settings, Job((name, task, *rates[0]), settings.seeds[0]))
        model, _ = finetune.load_encoder(own, texts.labels, seed=0)
        projects[name] = bool(projection_parameters(model))
    return _names(settings), projects
