"""Checks of a learning study before hours of training, and the order of its variants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from linformer_kit.data.files import find_files
from linformer_kit.experiments.experiment import check_output, earlier_file, require
from linformer_kit.experiments.learning.trials import Trial, changes_model, check_trial, make_trial
from linformer_kit.report.learning_figures import MOST_LINES
from linformer_kit.settings import LARGEST_SEED
from linformer_kit.settings.study import LearningSettings, cell_of_start, cells_of, rates_of, seeds_of, where_tuned


def check(study: LearningSettings) -> None:
    """Reject settings that would fail after hours of training.

    Raises:
        InputError: for the first invalid setting.
    """
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
        _check_seeds(f"cells.{name}.seeds", where.get("seeds", study.seeds), among=study.seeds)
    for name in ("english_file", "sentence_file"):
        if getattr(study, name):
            find_files(getattr(study, name), field=name)
    for name in ("from_model", "resize_to", "output_dir", "resume", "overwrite", "compare_full"):
        value = getattr(study.base, name)
        require(not value, f"base.{name}", "False (the study determines it)" if value is True else "none", value)
    for variant, what in study.variants.items():
        _check_variant(study, variant, what)
    ordered = sum(map(len, in_order(study)))
    require(ordered == len(study.variants), "variants", "`after` without cycles", "a cycle")
    _check_what_is_continued(study)
    _check_panels(study)
    for trial in one_of_each_kind(study):
        check_trial(trial)
    earlier = earlier_file(study.output_dir, "learning", resume=study.resume)
    check_output(study.output_dir, resume=earlier is not None)


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
    _check_names(f"{place}.cells", what.get("cells", [*study.cells]), [*study.cells])
    after = what.get("after")
    known = after is None or (isinstance(after, str) and after in study.variants)
    require(known, f"{place}.after", "another variant", after)
    if after is not None:
        rates = rates_of(dataclasses.asdict(study), variant)
        require(len(rates) == 1, f"{place}.learning_rates", "one, with `after`", rates)


def _check_what_is_continued(study: LearningSettings) -> None:
    """Check seeds and cells: a variant's must be among those of the one that it continues, unless that one has a single
    seed, or a single cell and its model is converted; they must have the cell in which it is tuned; the baseline needs
    all seeds, for differences."""
    fields = dataclasses.asdict(study)
    tuned, _ = where_tuned(fields)
    for variant, what in study.variants.items():
        after, cells = what.get("after"), cells_of(fields, variant)
        if after is not None:
            there = cells_of(fields, after)
            alone = changes_model(what) and len(there) == 1
            expected = f"some of {there}, those of {after}"
            require(alone or set(cells) <= set(there), f"variants.{variant}.cells", expected, cells)
        for cell in cells:
            seeds = seeds_of(fields, variant, cell)
            expected = f"some of those of cell {cell}"
            require(bool(seeds), f"variants.{variant}.seeds", expected, seeds_of(fields, variant))
            if after is not None:
                of_start = seeds_of(fields, after, cell_of_start(fields, after, cell))
                expected = f"some of {of_start}, those of {after}"
                alone = len(of_start) == 1
                require(alone or set(seeds) <= set(of_start), f"variants.{variant}.seeds", expected, seeds)
        several = len(rates_of(fields, variant)) > 1
        expected = f"{tuned} among them, where its learning rates are tried"
        require(not several or tuned in cells, f"variants.{variant}.cells", expected, cells)
    of_baseline = seeds_of(fields, study.baseline)
    everything = f"all of {study.seeds} for the baseline"
    require(set(study.seeds) == set(of_baseline), f"variants.{study.baseline}.seeds", everything, of_baseline)


def _check_panels(study: LearningSettings) -> None:
    fields = dataclasses.asdict(study)
    for title, panel in study.panels.items():
        place = f"panels.{title}"
        require(set(panel) == {"cells", "variants"}, place, "cells and variants", ", ".join(map(str, panel)) or "none")
        _check_names(f"{place}.cells", panel["cells"], [*study.cells])
        _check_names(f"{place}.variants", panel["variants"], [*study.variants])
        lines = 0
        for variant in panel["variants"]:
            trained = cells_of(fields, variant)
            drawn = set(panel["cells"]) & set(trained)
            expected = f"one of {', '.join(trained)} for {variant}, which is trained there"
            require(bool(drawn), f"{place}.cells", expected, panel["cells"])
            lines += len(drawn)
        require(lines <= MOST_LINES, place, f"at most {MOST_LINES} lines", lines)


def _check_names(name: str, names: Any, among: list[str]) -> None:
    known = isinstance(names, list) and bool(names) and all(each in among for each in names)
    require(known and len(set(names)) == len(names), name, f"one or more of {', '.join(among)}, each once", names)


def _check_rates(name: str, rates: Any) -> None:
    in_range = isinstance(rates, list) and bool(rates) and all(map(_is_positive, rates))
    require(in_range and len(set(rates)) == len(rates), name, "a list of different numbers above 0", rates)


def _check_seeds(name: str, seeds: Any, among: list[int] | None = None) -> None:
    different = isinstance(seeds, list) and bool(seeds) and all(map(_is_seed, seeds)) and len(set(seeds)) == len(seeds)
    require(different, name, f"a list of different numbers from 0 to {LARGEST_SEED}", seeds)
    require(among is None or set(seeds) <= set(among), name, f"some of {among}", seeds)


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < math.inf


def _is_seed(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST_SEED


def in_order(study: LearningSettings) -> list[list[str]]:
    """Variants in groups, each after those that it continues."""
    groups: list[list[str]] = []
    there: set[str | None] = {None}
    while group := [name for name, what in study.variants.items() if name not in there and what.get("after") in there]:
        groups.append(group)
        there.update(group)
    return groups


def one_of_each_kind(study: LearningSettings) -> Iterator[Trial]:
    """A trial of each variant in each cell, with its first learning rate and the first seed."""
    fields = dataclasses.asdict(study)
    first = {variant: rates_of(fields, variant)[0] for variant in study.variants}
    for cell in study.cells:
        for variant in study.variants:
            if cell in cells_of(fields, variant):
                yield make_trial(study, cell, variant, first[variant], study.seeds[0], first)
