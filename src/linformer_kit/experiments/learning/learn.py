"""Compare how well several encoders learn: many small pretrainings from one recipe, with tables and curves.

`linformer bench learning --recipe start`. First the learning rate of each variant is tuned, then all variants are
trained in every cell with every seed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from linformer_kit.data.masked_text import load_text
from linformer_kit.environment import best_device
from linformer_kit.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_kit.experiments.experiment import Experiment, check_same_settings, earlier_file
from linformer_kit.experiments.learning.checks import check, in_order, one_of_each_kind
from linformer_kit.experiments.learning.running import cost_of_update, run_trial
from linformer_kit.experiments.learning.trials import Trial, make_trial, recorded_study, timed
from linformer_kit.experiments.measure import fresh_processes, in_fresh_process
from linformer_kit.experiments.parallel import run_all
from linformer_kit.files.manifest import read_json
from linformer_kit.report.learning import write_learning_report
from linformer_kit.settings.study import LearningSettings, cells_of, rates_of, seeds_of, where_tuned

_TIMED_ROUNDS = 2
# Fields of the environment that may differ when a study is resumed; times must be from one machine.
_MAY_DIFFER = ("date", "commit", "linformer_kit")


def main(settings: LearningSettings) -> None:
    """Train, write and print."""
    learn(settings).show()


def learn(study: LearningSettings) -> Experiment:
    """Run or resume a study; on resuming, cells, variants, rates and seeds may be added, removed or changed.

    Args:
        study: The study.

    Returns:
        The results as in `learning.json`, in the folder that also holds all models.

    Raises:
        InputError: for an incomplete study, or settings that `linformer pretrain` rejects.
    """
    check(study)
    experiment = Experiment(
        "bench learning",
        study.output_dir,
        device=best_device(),
        settings=recorded_study(study),
        write=write_learning_report,
        fields={
            "learning_rates": {},
            "seconds_per_update": {},
            "peak_bytes_of_update": {},
            "trials": [],
            "not_trained": [],
            "complete": False,
        },
    )
    results, settings = experiment.results, experiment.results["settings"]
    earlier = earlier_file(study.output_dir, "learning", resume=study.resume)
    if earlier is not None:
        results |= _continued(study, results["environment"], earlier)
    experiment.save()  # so that the folder can be resumed
    bar = tqdm(initial=len(results["trials"]), unit=" trainings", dynamic_ncols=True)
    with experiment, fresh_processes(study.processes) as pool, bar:
        run = _Run(study, experiment, pool, bar)
        run.all_of(_tuning(study))
        rates = {variant: _best_rate(settings, variant, results["trials"]) for variant in study.variants}
        results["learning_rates"] = rates
        for variants in in_order(study):
            trials = [
                make_trial(study, cell, variant, rates[variant], seed, rates)
                for cell in study.cells
                for seed in study.seeds
                for variant in variants
                if cell in cells_of(settings, variant) and seed in seeds_of(settings, variant, cell)
            ]
            trials = run.with_a_start(trials)
            run.all_of(trials)
            if study.measure_updates:
                run.measure_updates(trials)
    experiment.finish()
    return experiment


class _Run:
    """Runs the trainings of one study, except completed ones."""

    def __init__(self, study: LearningSettings, experiment: Experiment, pool: ProcessPoolExecutor, bar: tqdm) -> None:
        self.study, self.experiment, self.pool, self.bar = study, experiment, pool, bar
        self.results, self.folder = experiment.results, experiment.folder.resolve()

    def all_of(self, trials: Iterable[Trial]) -> None:
        """Run those of some independent trials that are not done; write results after each."""
        done = {entry["name"] for entry in self.results["trials"]}
        left = [trial for trial in trials if trial.name not in done]
        self.bar.total = self.bar.n + len(left)
        self.bar.refresh()
        self.measure_updates(trial for trial in left if trial.minutes)
        known = self.results["seconds_per_update"]
        left = [timed(trial, known[trial.kind]) if trial.minutes else trial for trial in left]
        threads = max(1, torch.get_num_threads() // self.study.processes)
        extra = (self.study.projected_dims, self.study.sentence_file)
        try:
            run_all(
                self.pool,
                left,
                lambda trial: self.pool.submit(run_trial, trial, self.folder, threads, *extra),
                lambda _, future: self._record(future.result()),
            )
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None

    def with_a_start(self, trials: list[Trial]) -> list[Trial]:
        """Those of some trainings that have what they continue; others are recorded as not trained."""
        there = {None, *(entry["name"] for entry in self.results["trials"] if entry["validation_loss"] is not None)}
        self.results["not_trained"] += [
            {name: getattr(trial, name) for name in ("cell", "variant", "seed", "before")}
            for trial in trials
            if trial.before not in there
        ]
        return [trial for trial in trials if trial.before in there]

    def _record(self, entry: dict[str, Any]) -> None:
        """Add the results of a training."""
        self.results["trials"].append(entry)
        self.experiment.save()
        loss = entry["validation_loss"]
        self.bar.set_postfix_str(f"{entry['name']}: {'diverged' if loss is None else f'{loss:.3f}'}")
        self.bar.update()

    def measure_updates(self, trials: Iterable[Trial]) -> None:
        """Measure time and memory of an update of each kind of trial without a known time, one at a time."""
        known = self.results["seconds_per_update"]
        kinds = {trial.kind: trial for trial in trials if trial.kind not in known}
        threads = torch.get_num_threads()
        rounds = [
            {kind: in_fresh_process(cost_of_update, trial, self.folder, threads) for kind, trial in kinds.items()}
            for _ in range(_TIMED_ROUNDS if kinds else 0)
        ]
        known |= {kind: min(each[kind].seconds for each in rounds) for kind in kinds}
        peaks = {kind: [each[kind].peak_bytes for each in rounds] for kind in kinds}
        self.results["peak_bytes_of_update"] |= {kind: max(each) for kind, each in peaks.items() if None not in each}
        self.experiment.save()  # so that a resumed study uses the same times


def _tuning(study: LearningSettings) -> list[Trial]:
    """The trainings that tune learning rates."""
    fields = dataclasses.asdict(study)
    cell, seed = where_tuned(fields)
    return [
        make_trial(study, cell, variant, rate, seed, {})
        for variant in study.variants
        for rate in rates_of(fields, variant)
        if len(rates_of(fields, variant)) > 1
    ]


def _best_rate(settings: dict[str, Any], variant: str, entries: list[dict[str, Any]]) -> float:
    """The learning rate with the lowest loss in the tuning; the first if all diverged."""
    rates = rates_of(settings, variant)
    where = (*where_tuned(settings), variant)
    found = {
        entry["learning_rate"]: entry["validation_loss"]
        for entry in entries
        if (entry["cell"], entry["seed"], entry["variant"]) == where and entry["validation_loss"] is not None
    }
    return min(rates, key=lambda rate: found.get(rate, math.inf))


def _continued(study: LearningSettings, here: dict[str, Any], path: Path) -> dict[str, Any]:
    """The earlier results that a resumed study keeps: those of trials whose settings are unchanged, as are those of
    the trials that they continue.

    Raises:
        InputError: for another machine or other versions, other texts, and other values of k or files to evaluate
            with as well.
    """
    earlier = read_json(path)
    now = {name: value for name, value in recorded_study(study).items() if name in ("projected_dims", "sentence_file")}
    check_same_settings(earlier, now, path)
    there = earlier["environment"]
    for name, value in here.items():
        if name not in _MAY_DIFFER and there.get(name) != value:
            raise InputError(f"resume: expected {name} {there.get(name)}, as in {path}, got {value}")
    earlier_commits = (there["commit"] or "unknown").split(", ")
    commits = dict.fromkeys([*earlier_commits, here["commit"] or "unknown"])  # unknown outside a git checkout
    meant = {trial.kind: trial for trial in one_of_each_kind(study)}
    kept: dict[str, dict[str, Any]] = {}
    for entry in earlier["trials"]:  # each after the one that it continues
        if entry["kind"] in meant and (entry["before"] is None or entry["before"] in kept):
            kept[entry["name"]] = entry
    _check_texts(meant, {entry["kind"]: entry for entry in kept.values()}, path)
    return {
        "environment": {**there, "commit": ", ".join(commits)},
        **{
            name: {kind: value for kind, value in earlier.get(name, {}).items() if kind in meant}
            for name in ("seconds_per_update", "peak_bytes_of_update")
        },
        "trials": [*kept.values()],
    }


def _check_texts(trials: dict[str, Trial], entries: dict[str, dict[str, Any]], path: Path) -> None:
    """Raise InputError where the texts of a trial are not those of an earlier one of the same kind."""
    for kind, entry in entries.items():
        text = load_text(dataclasses.replace(trials[kind].settings, seed=entry["seed"]))
        if text.fingerprint != entry["corpus"]["fingerprint"]:
            raise InputError(f"resume: expected the texts of {entry['name']} in {path}, got others")
