"""Which of several encoders learns best: many small pretrainings from one recipe, their tables and curves.

`linformer bench learning --recipe start`. First each variant finds its learning rate, then all are trained in every
cell with every seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from linformer_kit.bench.measure import environment, fresh_processes, in_fresh_process
from linformer_kit.bench.prepare import require
from linformer_kit.bench.settings import LearningSettings
from linformer_kit.bench.trials import Trial, check_trial, make_trial, run_trial, seconds_per_update, timed
from linformer_kit.errors import InputError
from linformer_kit.report.learning import learning_markdown, write_learning_report
from linformer_kit.training.checkpoint import check_new_folder, check_output_dir, open_output_dir, read_json

RESULTS = "learning.json"
_TIMED_ROUNDS = 2
# Where results are and how they came about is not what they are; files stand in them by their names alone.
_NOT_RECORDED = ("output_dir", "resume", "processes")
_FILES = ("english_file", "sentence_file")
# What a study that is resumed may have more of than before, and what may be different.
_MAY_GROW = ("cells", "variants")
_MAY_CHANGE = ("title", "baseline", "learning_rates", "tune", "seeds")


def main(settings: LearningSettings) -> None:
    """Train, write and print."""
    results, folder = learn(settings)
    print(learning_markdown(results))
    print(f"Saved in {folder}")


def learn(study: LearningSettings) -> tuple[dict[str, Any], Path]:
    """Run a study, or go on with one.

    Args:
        study: What to train.

    Returns:
        The results as they are in `learning.json`, and the folder that holds them and all models.

    Raises:
        InputError: for a study that is not whole, or settings that `linformer pretrain` would refuse.
    """
    _check(study)
    check_output_dir(study.output_dir, resume=False, overwrite=False)
    results = _earlier_results(study) if study.resume else None
    if results is None:
        if study.output_dir is not None:
            check_new_folder("output_dir", study.output_dir)
        results = _new_results(study)
    folder = open_output_dir(study.output_dir, command="bench-learning", overwrite=False)
    known = len(results["trials"])
    total = len({_key(entry) for entry in results["trials"]} | {_key(dataclasses.asdict(t)) for t in _tuning(study)})
    bar = tqdm(total=total, initial=known, unit="training", dynamic_ncols=True)
    with fresh_processes(study.processes) as pool, bar:
        run = _Run(study, folder, results, pool, bar)
        run.all_of(_tuning(study))
        rates = {variant: _best_rate(study, variant, results["trials"]) for variant in study.variants}
        results["learning_rates"] = rates
        for variants in _in_order(study):
            run.all_of(
                make_trial(study, cell, variant, rates[variant], seed)
                for cell in study.cells
                for seed in study.seeds
                for variant in variants
            )
    results["complete"] = True
    write_learning_report(results, folder)
    return results, folder


class _Run:
    """The trainings of one study, those that are done left out."""

    def __init__(
        self, study: LearningSettings, folder: Path, results: dict[str, Any], pool: ProcessPoolExecutor, bar: tqdm
    ) -> None:
        self.study, self.folder, self.results, self.pool, self.bar = study, folder, results, pool, bar

    def all_of(self, trials: Iterable[Trial]) -> None:
        """Run what is left of some trials that do not need each other; results are written after each."""
        left = list(self._left(trials))
        self.bar.total = max(self.bar.total, self.bar.n + len(left))
        self._measure_updates(left)
        left = [self._timed(trial) if trial.minutes else trial for trial in left]
        threads = max(1, torch.get_num_threads() // self.study.processes)
        extra = (self.study.projected_dims, self.study.sentence_file)
        running = {self.pool.submit(run_trial, trial, self.folder, threads, *extra): trial for trial in left}
        try:
            for finished in as_completed(running):
                self.results["trials"].append(finished.result())
                write_learning_report(self.results, self.folder)
                self.bar.set_postfix_str(f"{running[finished].name} {finished.result()['validation_loss']:.3f}")
                self.bar.update()
        except BrokenProcessPool:
            raise InputError("processes: expected as many as there is memory for, and one of them was killed") from None
        finally:
            for future in running:
                future.cancel()

    def _left(self, trials: Iterable[Trial]) -> Iterable[Trial]:
        done = {_key(entry) for entry in self.results["trials"]}
        return (trial for trial in trials if _key(dataclasses.asdict(trial)) not in done)

    def _measure_updates(self, trials: list[Trial]) -> None:
        """The time of an update of each kind of trial that has minutes, with nothing beside it."""
        known = self.results["seconds_per_update"]
        kinds = {trial.kind: trial for trial in trials if trial.minutes and trial.kind not in known}
        threads = torch.get_num_threads()
        rounds = [
            {kind: in_fresh_process(seconds_per_update, trial, self.folder, threads) for kind, trial in kinds.items()}
            for _ in range(_TIMED_ROUNDS)
        ]
        known |= {kind: min(each[kind] for each in rounds) for kind in kinds}

    def _timed(self, trial: Trial) -> Trial:
        return timed(trial, self.results["seconds_per_update"][trial.kind])


def _check(study: LearningSettings) -> None:
    """Refuse what would fail after hours of training."""
    for name in ("cells", "variants", "learning_rates", "seeds"):
        require(bool(getattr(study, name)), name, "at least one", "none")
    require(study.processes >= 1, "processes", "1 or more", study.processes)
    require(study.baseline in study.variants, "baseline", f"one of {', '.join(study.variants)}", study.baseline)
    if any(cell.get("english") for cell in study.cells.values()):
        require(bool(study.english_file), "english_file", "files of English text, as cells ask for it", "none")
    cell, seed = _where_to_tune(study)
    require(cell in study.cells, "tune.cell", f"one of {', '.join(study.cells)}", cell)
    for variant, changes in study.variants.items():
        rates, earlier = _rates(study, variant), changes.get("after")
        require(earlier is None or earlier in study.variants, f"{variant}.after", "another variant", earlier)
        require(earlier is None or len(rates) == 1, f"{variant}.learning_rates", "one, with `after`", rates)
        for name in study.cells:
            check_trial(make_trial(study, name, variant, rates[0], seed))
    require(sum(map(len, _in_order(study))) == len(study.variants), "after", "no variant after itself", "a circle")


def _tuning(study: LearningSettings) -> list[Trial]:
    """The trainings that choose learning rates."""
    cell, seed = _where_to_tune(study)
    return [
        make_trial(study, cell, variant, rate, seed)
        for variant in study.variants
        for rate in _rates(study, variant)
        if len(_rates(study, variant)) > 1
    ]


def _where_to_tune(study: LearningSettings) -> tuple[str, int]:
    return study.tune.get("cell", next(iter(study.cells))), study.tune.get("seed", study.seeds[0])


def _rates(study: LearningSettings, variant: str) -> list[float]:
    return study.variants[variant].get("learning_rates", study.learning_rates)


def _best_rate(study: LearningSettings, variant: str, entries: list[dict[str, Any]]) -> float:
    """The learning rate with the least loss where rates are tuned."""
    rates = _rates(study, variant)
    if len(rates) == 1:
        return rates[0]
    where = (*_where_to_tune(study), variant)
    found = {
        entry["learning_rate"]: entry["validation_loss"]
        for entry in entries
        if (entry["cell"], entry["seed"], entry["variant"]) == where and entry["learning_rate"] in rates
    }
    finite = {rate: loss for rate, loss in found.items() if loss is not None and math.isfinite(loss)}
    require(bool(finite), f"{variant}.learning_rates", "one that training survives", rates)
    return min(finite, key=lambda rate: finite[rate])


def _in_order(study: LearningSettings) -> list[list[str]]:
    """Variants in groups, each after those that it goes on from."""
    groups: list[list[str]] = []
    there: set[str | None] = {None}
    while group := [name for name, what in study.variants.items() if name not in there and what.get("after") in there]:
        groups.append(group)
        there.update(group)
    return groups


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("cell", "variant", "learning_rate", "seed"))


def _new_results(study: LearningSettings) -> dict[str, Any]:
    return {
        "command": "bench learning",
        "environment": environment(torch.device("cpu")),
        "settings": _recorded(study),
        "learning_rates": {},
        "seconds_per_update": {},
        "trials": [],
        "complete": False,
    }


def _recorded(study: LearningSettings) -> dict[str, Any]:
    fields = {name: value for name, value in dataclasses.asdict(study).items() if name not in _NOT_RECORDED}
    fields["base"].pop("cache_dir")
    for name in _FILES:
        fields[name] = None if fields[name] is None else [Path(each).name for each in fields[name]]
    return fields


def _earlier_results(study: LearningSettings) -> dict[str, Any] | None:
    """What there is to go on with. Cells, variants, rates and seeds may join; the rest must be the same."""
    path = Path(study.output_dir or "") / RESULTS
    if study.output_dir is None or not path.exists():
        return None
    results, now = read_json(path), _recorded(study)
    before = results.get("settings", {})
    for name, value in now.items():
        if name in _MAY_GROW:
            same = all(value.get(key, old) == old for key, old in before.get(name, {}).items())
        else:
            same = name in _MAY_CHANGE or before.get(name) == value
        if not same:
            raise InputError(f"resume: expected {name} as in {path}, got another")
    return {**results, "settings": now, "complete": False}
