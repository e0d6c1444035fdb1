"""Tables of fine-tuned models: differences to the first of them."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.experiments.quality.table2_cells import chosen_cells
from linformer_kit.report.table2 import _differences, _rates


def cell(model: str, right: list[str], **fields: object) -> dict:
    """A cell with a run for each seed, from 0; `right` has a 1 for each text that is classified right."""
    runs = [
        {
            "seed": seed,
            "metrics": {"accuracy": each.count("1") / len(each)},
            "right": np.packbits([int(bit) for bit in each]).tobytes().hex(),
        }
        for seed, each in enumerate(right)
    ]
    return {"model": model, "task": "sst2", "learning_rate": 1e-3, "runs": runs} | fields


def test_differences_are_paired_by_seeds_and_by_texts():
    first, second = cell("a", ["1111100000", "1111110000"]), cell("b", ["0111111111", "0111111100"])
    results = {"models": ["a", "b"], "tasks": ["sst2"], "settings": {"seeds": [0, 1]}}
    lines = _differences(results, {("a", "sst2"): first, ("b", "sst2"): second})
    assert lines[1] == "## Differences to a"
    # With the first seed five texts are right only by b, one only by a: p = 2 · (1 + 6) / 2⁶.
    assert lines[-1] == "| b | SST-2 | +25.00 ± 21.21 | 5 | 1 | 0.219 |"


@pytest.mark.parametrize(("seeds", "row"), [([1, 2], "| b | SST-2 | +0.00 |  |  |  |"), ([2], None)])
def test_differences_before_all_seeds_are_trained(seeds, row):
    """Only trainings of the same seed are compared, and texts only by the first seed."""
    first, second = cell("a", ["10", "11"]), cell("b", ["11", "11", "01"])
    second["runs"] = [run for run in second["runs"] if run["seed"] in seeds]
    results = {"models": ["a", "b"], "tasks": ["sst2"], "settings": {"seeds": [0, 1, 2]}}
    lines = _differences(results, {("a", "sst2"): first, ("b", "sst2"): second})
    assert lines[-1:] == ([] if row is None else [row])


def test_results_of_earlier_versions_have_no_answers():
    first, second = cell("a", ["10"]), cell("b", ["01"]) | {"runs": [{"seed": 0, "metrics": {"accuracy": 0.5}}]}
    results = {"models": ["a", "b"], "tasks": ["sst2"], "settings": {"seeds": [0]}}
    assert _differences(results, {("a", "sst2"): first, ("b", "sst2"): second}) == []


def test_rates_of_e_and_f_are_shown_where_several_were_tried():
    cells = [cell("a", ["1"], projection_learning_rate_factor=factor) for factor in (0.1, 0.0)]
    assert _rates({"cells": cells}, cells[0]) == "0.001 × 0.1 (0.001 × 0, 0.001 × 0.1)"
    assert _rates({"cells": cells[:1]}, cells[0]) == "0.001"
    compared = [
        cell("a", ["1"], projection_learning_rate_factor=1.0, tuning=True, learning_rate=rate) for rate in (1, 2)
    ]
    assert _rates({"cells": [*compared, cells[0]]}, cells[0] | {"learning_rate": 1}) == "1 (1, 2)"


@pytest.mark.parametrize("earlier", [True, False])
def test_the_best_rates_are_those_of_the_first_seed_in_the_comparison_if_there_is_one(earlier):
    """Results of earlier versions name neither a comparison nor rates of E and F."""
    own = {} if earlier else {"projection_learning_rate_factor": 0.1, "tuning": False}
    known = {"metrics": ["accuracy"], "diverged": False} | own
    cells = [cell("a", ["10", "11"], learning_rate=1e-3, **known), cell("a", ["11", "00"], learning_rate=1e-2, **known)]
    results = {"cells": cells, "settings": {"seeds": [0, 1]}}
    assert chosen_cells(results)["a", "sst2"]["learning_rate"] == 1e-2
    cells.append(cell("a", ["11"], learning_rate=1e-3, **known | {"tuning": True}))
    assert chosen_cells(results)["a", "sst2"]["learning_rate"] == 1e-3
