"""Table 2: accuracy of several encoders after fine-tuning on the tasks of section 5.2, and its cost."""

from __future__ import annotations

import dataclasses
import hashlib
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
from linformer_kit.experiments.experiment import Experiment, check_output, check_same_settings, earlier_file
from linformer_kit.experiments.measure import in_fresh_process, peak_bytes
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

Place = tuple[str, str, float, float]  # model, task, learning rate, and that of E and F as a multiple of it


@dataclasses.dataclass(frozen=True)
class _Job:
    """Trainings of one model on one task at one rate.

    Attributes:
        place: Model, task and rates.
        seeds: A training for each.
        tuning: Whether it has `tuning_samples` texts, so that it only compares rates.
    """

    place: Place
    seeds: list[int]
    tuning: bool = False


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
        for task in settings.tasks:
            seeds = settings.seeds[:1] if task in settings.one_seed else settings.seeds
            tried = {name: [(name, task, *rates) for rates in _rates(settings, projects[name])] for name in names}
            several = [place for places in tried.values() if len(places) > 1 for place in places]
            tuning = settings.tuning_samples is not None
            _run(settings, experiment, [_Job(place, seeds[:1], tuning) for place in several], bar)
            chosen = chosen_places(experiment.results)
            best = [places[0] if len(places) == 1 else chosen.get((name, task)) for name, places in tried.items()]
            _run(settings, experiment, [_Job(place, seeds) for place in best if place is not None], bar)
        experiment.finish()
    return experiment


def chosen_places(results: dict[str, Any]) -> dict[tuple[str, str], Place]:
    """For each model and task, the rates with the best metric for the first seed, in the tuning if there was one.

    Returns:
        Places by (model, task), without those in which all trainings diverged.
    """
    compared = [cell for cell in results["cells"] if cell["runs"]]
    tuned = {_model_and_task(cell) for cell in compared if _is_tuning(cell)}
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in compared:
        key = _model_and_task(cell)
        counts = _is_tuning(cell) == (key in tuned)
        if counts and (key not in best or _first_metric(cell) > _first_metric(best[key])):
            best[key] = cell
    return {key: _place(cell) for key, cell in best.items()}


def chosen_cells(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """For each model and task, by both, the cell at its best rates; without those that are not trained there yet."""
    chosen = chosen_places(results)
    trained = [cell for cell in results["cells"] if cell["runs"] and not _is_tuning(cell)]
    return {_model_and_task(cell): cell for cell in trained if chosen[_model_and_task(cell)] == _place(cell)}


def _is_tuning(cell: dict[str, Any]) -> bool:
    return bool(cell.get("tuning"))  # absent in results of earlier versions


def _model_and_task(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["model"], cell["task"]


def _first_metric(cell: dict[str, Any]) -> float:
    return cell["runs"][0]["metrics"][cell["metrics"][0]]


def _write(results: dict[str, Any], folder: Path) -> str:
    return write_table2_report(results, folder, chosen_cells(results))


def _place(cell: dict[str, Any]) -> Place:
    return cell["model"], cell["task"], cell["learning_rate"], cell["projection_learning_rate_factor"]


def _rates(settings: Table2Settings, projects: bool) -> list[tuple[float, float]]:
    """The learning rates to try, each with that of E and F as a multiple; one multiple for a model without them."""
    factors = settings.projection_learning_rate_factors
    return [(rate, factor) for rate in settings.learning_rates for factor in (factors if projects else factors[:1])]


def _run(settings: Table2Settings, experiment: Experiment, jobs: list[_Job], bar: tqdm) -> None:
    """Run those of some independent jobs that are not done, and write the results after each."""
    left = [job for job in jobs if not _is_done(_cell(experiment.results, job), job)]
    bar.total += len(left)
    bar.refresh()
    folder, threads = experiment.folder.resolve(), max(1, torch.get_num_threads() // settings.processes)
    pool = ThreadPoolExecutor(settings.processes)  # its threads only wait for processes
    try:
        running = [
            pool.submit(in_fresh_process, _finetune, _finetune_settings(settings, job, folder), threads) for job in left
        ]
        for job, future in zip(left, running, strict=True):
            _record(experiment, job, future)
            bar.update()
    finally:
        pool.shutdown(cancel_futures=True)  # waits for the running ones


def _record(experiment: Experiment, job: _Job, future: Future[tuple[dict[str, Any], int]]) -> None:
    """Wait for a job and write its results."""
    results = experiment.results
    known = _cell(results, job)
    names = ("model", "task", "learning_rate", "projection_learning_rate_factor")
    new = {**dict(zip(names, job.place, strict=True)), "tuning": job.tuning, "diverged": False, "runs": []}
    cell: dict[str, Any] = new if known is None else known
    try:
        found, memory = future.result()
    except DivergedError:
        cell["diverged"] = True
    else:
        cell |= {
            "parameters": found["model"]["parameters"],
            "texts": found["texts"],
            "metrics": found["metrics"],
            "peak_bytes": max(memory, cell.get("peak_bytes", 0)),
            "runs": [{kept: run.get(kept) for kept in _KEPT} for run in found["runs"]],
        }
    if known is None:
        results["cells"].append(cell)
    experiment.save()


def _cell(results: dict[str, Any], job: _Job) -> dict[str, Any] | None:
    """The results of a job so far."""
    wanted = (job.place, job.tuning)
    return next((cell for cell in results["cells"] if (_place(cell), _is_tuning(cell)) == wanted), None)


def _is_done(cell: dict[str, Any] | None, job: _Job) -> bool:
    return cell is not None and (cell["diverged"] or {run["seed"] for run in cell["runs"]} >= set(job.seeds))


def _finetune(settings: FinetuneSettings, threads: int) -> tuple[dict[str, Any], int]:
    """Runs in the fresh process: the results, and the peak memory minus the memory in use before."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    memory = peak_bytes(lambda: found.append(finetune.finetune(settings)[0]), best_device())
    return found[0], memory


def _finetune_settings(settings: Table2Settings, job: _Job, folder: Path | None = None) -> FinetuneSettings:
    """The settings of a job, with its place below `folder` if it is given."""
    name, task, rate, factor = job.place
    passed = {field: getattr(settings, field) for field in _PASSED}
    if job.tuning:
        passed["max_train_samples"] = settings.tuning_samples
    own = f"{task}-{rate:g}-{factor:g}{'-tuning' if job.tuning else ''}"
    return FinetuneSettings(
        model=_names(settings)[name],
        task=task,  # type: ignore[arg-type]
        seeds=job.seeds,
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
    if settings.processes < 1:
        raise InputError(f"processes: expected 1 or more, got {settings.processes}")
    rates = _rates(settings, projects=True)
    for each in rates:
        finetune.check(_finetune_settings(settings, _Job((names[0], settings.tasks[0], *each), settings.seeds)))
    if settings.tuning_samples is not None and settings.tuning_samples < 1:
        raise InputError(f"tuning_samples: expected 1 or more, got {settings.tuning_samples}")
    for task in settings.tasks:
        for tuning in (True, False) if settings.tuning_samples else (False,):
            texts = load_labelled(_finetune_settings(settings, _Job((names[0], task, *rates[0]), [0], tuning)))
    projects = {}
    for name in names:
        own = _finetune_settings(settings, _Job((name, task, *rates[0]), settings.seeds))
        model, _ = finetune.load_encoder(own, texts.labels, seed=0)
        projects[name] = bool(projection_parameters(model))
    return _names(settings), projects
