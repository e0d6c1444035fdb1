"""Which of several encoders learns best: many small pretrainings from one recipe, their tables and curves.

`linformer bench learning --recipe start`. First each variant finds its learning rate, then all are trained in every
cell with every seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from linformer_kit.data.files import find_files
from linformer_kit.environment import best_device, environment
from linformer_kit.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_kit.experiments.learning.trials import (
    Trial,
    check_trial,
    make_trial,
    recorded_study,
    run_trial,
    seconds_per_update,
    timed,
)
from linformer_kit.experiments.measure import fresh_processes, in_fresh_process
from linformer_kit.experiments.prepare import require
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.report.learning import learning_markdown, rates_of, seeds_of, where_tuned, write_learning_report
from linformer_kit.settings import LARGEST_SEED
from linformer_kit.settings.bench import LearningSettings

RESULTS = "learning.json"
_TIMED_ROUNDS = 2
# What may be different where a study goes on; times are of one machine.
_MAY_DIFFER = ("date", "commit", "linformer_kit")


def main(settings: LearningSettings) -> None:
    """Train, write and print."""
    results, folder = learn(settings)
    print(learning_markdown(results))
    print(f"Saved in {folder}")


def learn(study: LearningSettings) -> tuple[dict[str, Any], Path]:
    """Run a study, or go on with one: cells, variants, rates and seeds may join, go or change.

    Args:
        study: What to train.

    Returns:
        The results as they are in `learning.json`, and the folder that holds them and all models.

    Raises:
        InputError: for a study that is not whole, or settings that `linformer pretrain` would refuse.
    """
    _check(study)
    results = _open_results(study)
    settings = results["settings"]
    folder = open_output_dir(study.output_dir, command="bench-learning", overwrite=False).resolve()
    write_learning_report(results, folder)  # a folder with results is one to go on in
    bar = tqdm(initial=len(results["trials"]), unit=" trainings", dynamic_ncols=True)
    with fresh_processes(study.processes) as pool, bar:
        run = _Run(study, folder, results, pool, bar)
        run.all_of(_tuning(study))
        rates = {variant: _best_rate(settings, variant, results["trials"]) for variant in study.variants}
        results["learning_rates"] = rates
        for variants in _in_order(study):
            run.all_of(
                make_trial(study, cell, variant, rates[variant], seed, rates)
                for cell in study.cells
                for seed in study.seeds
                for variant in variants
                if seed in seeds_of(settings, variant)
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
        done = {entry["name"] for entry in self.results["trials"]}
        left = [trial for trial in trials if trial.name not in done]
        self.bar.total = self.bar.n + len(left)
        self.bar.refresh()
        self._measure_updates(left)
        known = self.results["seconds_per_update"]
        left = [timed(trial, known[trial.kind]) if trial.minutes else trial for trial in left]
        threads = max(1, torch.get_num_threads() // self.study.processes)
        extra = (self.study.projected_dims, self.study.sentence_file)
        running: list[Future[dict[str, Any]]] = []
        recorded: set[Future[dict[str, Any]]] = set()
        try:
            running += [self.pool.submit(run_trial, trial, self.folder, threads, *extra) for trial in left]
            for finished in as_completed(running):
                entry = finished.result()
                recorded.add(finished)
                self._record(entry)
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None
        finally:
            if len(recorded) < len(left):
                self.pool.shutdown(cancel_futures=True)  # waits for those under way
                self._record_rest([future for future in running if future not in recorded])

    def _record_rest(self, ended: Iterable[Future[dict[str, Any]]]) -> None:
        """What has ended well after another one failed."""
        for future in ended:
            if not future.cancelled() and future.exception() is None:
                self._record(future.result())

    def _record(self, entry: dict[str, Any]) -> None:
        self.results["trials"].append(entry)
        write_learning_report(self.results, self.folder)
        loss = entry["validation_loss"]
        self.bar.set_postfix_str(f"{entry['name']}: {'diverged' if loss is None else f'{loss:.3f}'}")
        self.bar.update()

    def _measure_updates(self, trials: list[Trial]) -> None:
        """The time of an update of each kind of trial that has minutes, in turn and with nothing beside them."""
        known = self.results["seconds_per_update"]
        kinds = {trial.kind: trial for trial in trials if trial.minutes and trial.kind not in known}
        threads = torch.get_num_threads()
        rounds = [
            {kind: in_fresh_process(seconds_per_update, trial, self.folder, threads) for kind, trial in kinds.items()}
            for _ in range(_TIMED_ROUNDS if kinds else 0)
        ]
        known |= {kind: min(each[kind] for each in rounds) for kind in kinds}
        write_learning_report(self.results, self.folder)  # or a study that goes on would measure others


def _check(study: LearningSettings) -> None:
    """Refuse what would fail after hours of training."""
    require(study.output_dir is not None or not study.resume, "resume", "an output_dir to resume in", "none")
    _check_numbers(study)
    require(study.baseline in study.variants, "baseline", f"one of {', '.join(study.variants)}", study.baseline)
    require(set(study.tune) <= {"cell", "seed"}, "tune", "cell and seed", ", ".join(map(str, study.tune)))
    cell, seed = where_tuned(dataclasses.asdict(study))
    require(isinstance(cell, str) and cell in study.cells, "tune.cell", f"one of {', '.join(study.cells)}", cell)
    require(_is_seed(seed), "tune.seed", f"0 to {LARGEST_SEED}", seed)
    for name, where in study.cells.items():
        english = where.get("english", False)
        require(isinstance(english, bool), f"cells.{name}.english", "true or false", english)
        require(not english or bool(study.english_file), "english_file", "files of English text for the cells", "none")
    for name in ("english_file", "sentence_file"):
        if getattr(study, name):
            find_files(getattr(study, name), field=name)
    for name in ("from_model", "resize_to", "output_dir", "resume", "overwrite", "compare_full"):
        value = getattr(study.base, name)
        require(not value, f"base.{name}", "False, which is the study's to decide" if value is True else "none", value)
    for variant, what in study.variants.items():
        _check_variant(study, variant, what)
    ordered = sum(map(len, _in_order(study)))
    require(ordered == len(study.variants), "variants", "none that goes on from itself", "a circle of `after`")
    _check_seeds_are_there(study)
    for trial in _one_of_each_kind(study):
        check_trial(trial)
    if study.output_dir is not None and not (study.resume and (Path(study.output_dir) / RESULTS).exists()):
        check_new_folder("output_dir", study.output_dir)
    check_output_dir(study.output_dir, resume=False, overwrite=False)


def _check_numbers(study: LearningSettings) -> None:
    for name in ("cells", "variants", "learning_rates", "seeds"):
        require(bool(getattr(study, name)), name, "at least one", "none")
    _check_rates("learning_rates", study.learning_rates)
    _check_seeds("seeds", study.seeds)
    require(_is_positive(study.processes), "processes", "1 or more", study.processes)
    require(study.minutes is None or _is_positive(study.minutes), "minutes", "more than 0", study.minutes)
    require(all(dim >= 1 for dim in study.projected_dims), "projected_dims", "1 or more", study.projected_dims)


def _check_variant(study: LearningSettings, variant: str, what: dict[str, Any]) -> None:
    place = f"variants.{variant}"
    _check_rates(f"{place}.learning_rates", what.get("learning_rates", study.learning_rates))
    minutes = what.get("minutes")
    require(minutes is None or _is_positive(minutes), f"{place}.minutes", "more than 0", minutes)
    _check_seeds(f"{place}.seeds", what.get("seeds", study.seeds), among=study.seeds)
    after = what.get("after")
    known = after is None or (isinstance(after, str) and after in study.variants)
    require(known, f"{place}.after", "another variant", after)
    if after is not None:
        rates = rates_of(dataclasses.asdict(study), variant)
        require(len(rates) == 1, f"{place}.learning_rates", "one, with `after`", rates)
        of_model = [name for name in what if name.startswith("model.")]
        require(not of_model, f"{place}", "no setting of the model, which is that of `after`", ", ".join(of_model))


def _check_seeds_are_there(study: LearningSettings) -> None:
    """A variant needs the seeds of the one that it goes on from; the baseline needs all, for differences by seed."""
    fields = dataclasses.asdict(study)
    for variant, what in study.variants.items():
        seeds = seeds_of(fields, variant)
        if what.get("after") is not None:
            there = seeds_of(fields, what["after"])
            expected = f"some of {there}, those of {what['after']}"
            require(set(seeds) <= set(there), f"variants.{variant}.seeds", expected, seeds)
    of_baseline = seeds_of(fields, study.baseline)
    everything = f"all of {study.seeds} for the baseline"
    require(set(study.seeds) == set(of_baseline), f"variants.{study.baseline}.seeds", everything, of_baseline)


def _check_rates(name: str, rates: Any) -> None:
    in_range = isinstance(rates, list) and bool(rates) and all(map(_is_positive, rates))
    require(in_range and len(set(rates)) == len(rates), name, "a list of different numbers over 0", rates)


def _check_seeds(name: str, seeds: Any, among: list[int] | None = None) -> None:
    different = isinstance(seeds, list) and bool(seeds) and all(map(_is_seed, seeds)) and len(set(seeds)) == len(seeds)
    require(different, name, f"a list of different numbers from 0 to {LARGEST_SEED}", seeds)
    require(among is None or set(seeds) <= set(among), name, f"some of {among}", seeds)


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf


def _is_seed(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST_SEED


def _tuning(study: LearningSettings) -> list[Trial]:
    """The trainings that choose learning rates."""
    fields = dataclasses.asdict(study)
    cell, seed = where_tuned(fields)
    return [
        make_trial(study, cell, variant, rate, seed, {})
        for variant in study.variants
        for rate in rates_of(fields, variant)
        if len(rates_of(fields, variant)) > 1
    ]


def _best_rate(settings: dict[str, Any], variant: str, entries: list[dict[str, Any]]) -> float:
    """The learning rate with the least loss where rates are tuned; the first if no training survived any."""
    rates = rates_of(settings, variant)
    where = (*where_tuned(settings), variant)
    found = {
        entry["learning_rate"]: entry["validation_loss"]
        for entry in entries
        if (entry["cell"], entry["seed"], entry["variant"]) == where and entry["validation_loss"] is not None
    }
    return min(rates, key=lambda rate: found.get(rate, math.inf))


def _in_order(study: LearningSettings) -> list[list[str]]:
    """Variants in groups, each after those that it goes on from."""
    groups: list[list[str]] = []
    there: set[str | None] = {None}
    while group := [name for name, what in study.variants.items() if name not in there and what.get("after") in there]:
        groups.append(group)
        there.update(group)
    return groups


def _open_results(study: LearningSettings) -> dict[str, Any]:
    """Those of the study that goes on, without what has another meaning now, or new ones."""
    here = environment(best_device())
    results: dict[str, Any] = {
        "command": "bench learning",
        "environment": here,
        "settings": recorded_study(study),
        "learning_rates": {},
        "seconds_per_update": {},
        "trials": [],
        "complete": False,
    }
    path = Path(study.output_dir or "") / RESULTS
    if not study.resume or not path.exists():
        return results
    earlier = read_json(path)
    there = earlier["environment"]
    for name, value in here.items():
        if name not in _MAY_DIFFER and there.get(name) != value:
            raise InputError(f"resume: expected {name} {there.get(name)}, as in {path}, got {value}")
    commits = dict.fromkeys([*str(there["commit"]).split(", "), str(here["commit"])])
    meant = {trial.kind for trial in _one_of_each_kind(study)}
    return {
        **results,
        "environment": {**there, "commit": ", ".join(commits)},
        "seconds_per_update": {kind: time for kind, time in earlier["seconds_per_update"].items() if kind in meant},
        "trials": [entry for entry in earlier["trials"] if entry["kind"] in meant],
    }


def _one_of_each_kind(study: LearningSettings) -> Iterator[Trial]:
    """A trial of each variant in each cell, whatever rate and seed it has."""
    fields = dataclasses.asdict(study)
    first = {variant: rates_of(fields, variant)[0] for variant in study.variants}
    for cell in study.cells:
        for variant in study.variants:
            yield make_trial(study, cell, variant, first[variant], study.seeds[0], first)
