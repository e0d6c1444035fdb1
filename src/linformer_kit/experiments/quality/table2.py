"""Table 2: accuracy of several encoders after fine-tuning on the tasks of section 5.2, and its cost."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from linformer_kit.data.examples import Labels
from linformer_kit.data.labelled import load_labelled
from linformer_kit.data.tasks import TASKS
from linformer_kit.environment import best_device
from linformer_kit.errors import DivergedError, InputError
from linformer_kit.experiments import paper
from linformer_kit.experiments.experiment import Experiment, check_output, check_same_settings, earlier_file, require
from linformer_kit.experiments.measure import in_fresh_process, peak_bytes
from linformer_kit.experiments.parallel import run_all
from linformer_kit.experiments.quality.table2_cells import (
    Candidate,
    Cell,
    Job,
    Key,
    candidate_of,
    cell_of,
    chosen_candidates,
    chosen_cells,
    is_done,
    new_cell,
    order_of,
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

    If there are several learning rates, also of E and F, all are tried with the first seed, for tasks with more than
    `tuning_samples` training texts with that many; each model and task is trained with all seeds at the rates with the
    best metric. Rates at which training diverges are recorded and skipped.

    Returns:
        The results, as in `table2.json`, in the folder that also holds all classifiers.

    Raises:
        InputError: for models, tasks and settings that cannot be used, before any training.
    """
    inputs = _check(settings)
    fields: dict[str, Any] = {
        "models": {name: recorded_name(model) for name, model in inputs.models.items()},
        "fingerprints": {name: _fingerprint(model) for name, model in inputs.models.items()},
        "tasks": list(settings.tasks),
        "texts_fingerprints": inputs.texts,
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
        fields |= _continued(read_json(earlier), fields | {"settings": recorded}, earlier)
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
        candidates = {
            (name, task): _candidates(settings, experiment.results["cells"], name, task, inputs.projects[name])
            for task in settings.tasks
            for name in inputs.models
        }
        compared = [
            Job(candidate, settings.seeds[0], tuning=task in inputs.tuned)
            for (_, task), several in candidates.items()
            if len(several) > 1
            for candidate in several
        ]
        _run(settings, experiment, _left(experiment, compared), bar)
        while left := _left(
            experiment, _best(settings, experiment.results, candidates)
        ):  # again if one of them diverges
            _run(settings, experiment, left, bar)
        experiment.finish()
    return experiment


def _candidates(settings: Table2Settings, cells: list[Cell], name: str, task: str, projects: bool) -> list[Candidate]:
    """What is compared for a model and a task: the rates of these settings, and those in earlier results."""
    earlier = [candidate_of(cell) for cell in cells if (cell["model"], cell["task"]) == (name, task)]
    return list(dict.fromkeys([*earlier, *((name, task, *rates) for rates in _rates(settings, projects))]))


def _left(experiment: Experiment, jobs: list[Job]) -> list[Job]:
    """Those of some trainings that are not done."""
    return [job for job in jobs if not is_done(experiment.results["cells"], job)]


def _best(settings: Table2Settings, results: dict[str, Any], candidates: dict[Key, list[Candidate]]) -> list[Job]:
    """The trainings at the best rates."""
    only = {key: several[0] for key, several in candidates.items() if len(several) == 1}
    chosen = chosen_candidates(results) | only
    return [
        Job(chosen[key], seed)
        for key in candidates
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
    how = {
        "threads": threads,
        "processes": settings.processes,
        "device": experiment.results["environment"]["device"],
    }

    def start(job: Job) -> Future[tuple[dict[str, Any], int]]:
        return pool.submit(in_fresh_process, _finetune, _finetune_settings(settings, job, folder), threads, quiet)

    def record(job: Job, future: Future[tuple[dict[str, Any], int]]) -> None:
        try:
            outcome = future.result()
        except DivergedError:
            outcome = None
        _record(experiment, job, outcome, how)
        bar.update()

    with ThreadPoolExecutor(settings.processes) as pool:  # its threads only wait for processes
        run_all(pool, jobs, start, record)


def _record(experiment: Experiment, job: Job, outcome: tuple[dict[str, Any], int] | None, how: dict[str, Any]) -> None:
    """Write what a training gave into its cell, with `how` it was measured; None if it diverged."""
    results = experiment.results
    known = cell_of(results["cells"], job)
    cell = new_cell(job) if known is None else known
    if outcome is None:
        cell |= {"diverged": True, "diverged_seed": job.seed}
    else:
        found, memory = outcome
        (run,) = found["runs"]
        order = {seed: number for number, seed in enumerate(results["settings"]["seeds"])}
        runs = [*cell["runs"], {kept: run.get(kept) for kept in _KEPT} | how]
        cell |= {
            "parameters": found["model"]["parameters"],
            "texts": found["texts"],
            "metrics": found["metrics"],
            "peak_bytes": max(memory, cell.get("peak_bytes", 0)),
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
    """The settings of a job, writing to a folder of its own below `folder` if that is given."""
    name, task, rate, factor = job.candidate
    assert factor is not None
    passed = {field: getattr(settings, field) for field in _PASSED}
    if job.tuning:
        few = settings.tuning_samples
        passed |= {
            "max_train_samples": few,
            "max_eval_samples": min(filter(None, (few, settings.max_eval_samples))),
        }
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


def _continued(before: dict[str, Any], now: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields that results to resume determine: all of their models, tasks and cells are kept, with those of now.

    If all models are given again, their order is that of now; else the new ones come last, so that the first, with
    which the others are compared, stays.

    Raises:
        InputError: for other settings, another first seed, and for other models or texts of the same name.
    """
    check_same_settings(
        before, {name: now["settings"][name] for name in (*_PASSED, "one_seed", "tuning_samples")}, path
    )
    if before["settings"]["seeds"][0] != now["settings"]["seeds"][0]:
        raise InputError(f"resume: expected the first seed of {path}, got {now['settings']['seeds'][0]}")
    for name, model in now["models"].items():
        same = (before["models"].get(name), before["fingerprints"].get(name)) == (model, now["fingerprints"][name])
        if name in before["models"] and not same:
            raise InputError(f"resume: expected the model {name} of {path}, {before['models'][name]}, got another one")
    texts = before.get("texts_fingerprints", {})  # not in results of earlier versions
    for task, fingerprint in now["texts_fingerprints"].items():
        if texts.get(task, fingerprint) != fingerprint:
            raise InputError(f"resume: expected the texts of {task} of {path}, got others")
    all_again = before["models"].keys() <= now["models"].keys()
    factor = before["settings"].get("projection_learning_rate_factor")  # of earlier versions, which tried one
    return {
        **{name: now[name] if all_again else before[name] | now[name] for name in ("models", "fingerprints")},
        "texts_fingerprints": texts | now["texts_fingerprints"],
        "tasks": list(dict.fromkeys([*before["tasks"], *now["tasks"]])),
        "cells": [{"projection_learning_rate_factor": factor} | cell for cell in before["cells"]],
    }


def _fingerprint(model: str) -> str | None:
    """Hexadecimal hash of weights and configuration in a folder; None for models on the hub."""
    if not is_local_path(model):
        return None
    content = hashlib.sha256()
    for path in sorted([*Path(model).glob("*.safetensors"), Path(model) / "config.json"]):
        content.update(bytes.fromhex(file_fingerprint(path)))
    return content.hexdigest()


class _Inputs(NamedTuple):
    """What is trained and on what.

    Attributes:
        models: Folder or hub id of each model by its name.
        projects: Whether it has E and F, or W_P.
        texts: Hash of the texts of each task.
        tuned: Tasks with more than `tuning_samples` training texts.
    """

    models: dict[str, str]
    projects: dict[str, bool]
    texts: dict[str, str]
    tuned: set[str]


def _check(settings: Table2Settings) -> _Inputs:
    """Check everything that would fail later, and find the models and texts."""
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
    texts: dict[str, str] = {}
    labels: dict[str, Labels] = {}
    tuned: set[str] = set()
    first = settings.seeds[0]
    for task in settings.tasks:
        job = Job((names[0], task, *rates[0]), first)
        labelled = load_labelled(_finetune_settings(settings, job))
        texts[task], labels[task] = labelled.fingerprint(), labelled.labels
        if few is not None and few < len(labelled.train):
            load_labelled(_finetune_settings(settings, dataclasses.replace(job, tuning=True)))
            tuned.add(task)
    projects = {}
    for name in names:
        own = _finetune_settings(settings, Job((name, settings.tasks[0], *rates[0]), first))
        model, _ = finetune.load_encoder(own, labels[settings.tasks[0]], seed=0)
        projects[name] = bool(projection_parameters(model))
    return _Inputs(_names(settings), projects, texts, tuned)
