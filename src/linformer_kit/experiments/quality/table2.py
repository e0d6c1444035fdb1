"""Table 2: accuracy of several encoders after fine-tuning on the tasks of section 5.2, and its cost."""

from __future__ import annotations

import hashlib
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


def main(settings: Table2Settings) -> None:
    """Fine-tune all models on all tasks and print the table."""
    table2(settings).show()


def table2(settings: Table2Settings) -> Experiment:
    """Fine-tune each model on each task, one after the other, each in a separate process.

    If there are several learning rates, also of E and F, all are tried with the first seed; each model and task is
    trained with the other seeds at the rates with the best metric. Rates at which training diverges are recorded and
    skipped.

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
    with experiment, tqdm(total=len(names) * len(settings.tasks), unit=" cells", dynamic_ncols=True) as bar:
        for task in settings.tasks:
            seeds = settings.seeds[:1] if task in settings.one_seed else settings.seeds
            for name in names:
                factors = settings.projection_learning_rate_factors
                for rate in settings.learning_rates:
                    for factor in factors if projects[name] else factors[:1]:
                        _run(settings, experiment, (name, task, rate, factor), seeds[:1])
                best = chosen_cells(experiment.results).get((name, task))
                if best is not None:
                    _run(settings, experiment, _place(best), seeds)
                bar.update()
        experiment.finish()
    return experiment


def chosen_cells(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """For each model and task, the cell of the learning rate with the best metric for the first seed.

    Returns:
        Cells by (model, task), without those in which all trainings diverged.
    """
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in results["cells"]:
        place = (cell["model"], cell["task"])
        if cell["runs"] and (place not in chosen or _first_metric(cell) > _first_metric(chosen[place])):
            chosen[place] = cell
    return chosen


def _first_metric(cell: dict[str, Any]) -> float:
    return cell["runs"][0]["metrics"][cell["metrics"][0]]


def _write(results: dict[str, Any], folder: Path) -> str:
    return write_table2_report(results, folder, chosen_cells(results))


def _place(cell: dict[str, Any]) -> Place:
    return cell["model"], cell["task"], cell["learning_rate"], cell["projection_learning_rate_factor"]


def _run(settings: Table2Settings, experiment: Experiment, what: Place, seeds: list[int]) -> None:
    """Train one model on one task at one rate, unless these seeds are done, and write the results."""
    name, task, rate, factor = what
    results, folder = experiment.results, experiment.folder.resolve()
    known = [cell for cell in results["cells"] if _place(cell) == what]
    cell: dict[str, Any] = {
        "model": name,
        "task": task,
        "learning_rate": rate,
        "projection_learning_rate_factor": factor,
    }
    cell = known[0] if known else cell | {"diverged": False, "runs": []}
    if cell["diverged"] or {run["seed"] for run in cell["runs"]} >= set(seeds):
        return
    own = _finetune_settings(settings, what, seeds, str(folder / name / f"{task}-{rate:g}-{factor:g}"))
    try:
        found, memory = in_fresh_process(_finetune, own, torch.get_num_threads())
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
    if not known:
        results["cells"].append(cell)
    experiment.save()


def _finetune(settings: FinetuneSettings, threads: int) -> tuple[dict[str, Any], int]:
    """Runs in the fresh process: the results, and the peak memory minus the memory in use before."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    memory = peak_bytes(lambda: found.append(finetune.finetune(settings)[0]), best_device())
    return found[0], memory


def _finetune_settings(
    settings: Table2Settings, what: Place, seeds: list[int], output_dir: str | None = None
) -> FinetuneSettings:
    name, task, rate, factor = what
    return FinetuneSettings(
        model=_names(settings)[name],
        task=task,  # type: ignore[arg-type]
        seeds=seeds,
        learning_rate=rate,
        projection_learning_rate_factor=factor,
        output_dir=output_dir,
        cache_dir=settings.cache_dir,
        resume=output_dir is not None,
        report_to="none",
        **{field: getattr(settings, field) for field in _PASSED},
    )


def _names(settings: Table2Settings) -> dict[str, str]:
    """The models by name."""
    return dict(zip(_given_names(settings), settings.models, strict=True))


def _given_names(settings: Table2Settings) -> list[str]:
    return settings.names or [Path(model).name for model in settings.models]


def _earlier_cells(before: dict[str, Any], now: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The cells of the results to resume; models, tasks, rates and seeds may be added."""
    check_same_settings(before, {name: now["settings"][name] for name in (*_PASSED, "one_seed")}, path)
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
    rates = [(rate, factor) for rate in settings.learning_rates for factor in settings.projection_learning_rate_factors]
    for each in rates:
        finetune.check(_finetune_settings(settings, (names[0], settings.tasks[0], *each), settings.seeds))
    for task in settings.tasks:
        texts = load_labelled(_finetune_settings(settings, (names[0], task, *rates[0]), settings.seeds))
    projects = {}
    for name in names:
        own = _finetune_settings(settings, (name, task, *rates[0]), settings.seeds)
        model, _ = finetune.load_encoder(own, texts.labels, seed=0)
        projects[name] = bool(projection_parameters(model))
    return _names(settings), projects
