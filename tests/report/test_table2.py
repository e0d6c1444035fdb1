"""Tables and the figure of fine-tuned models: differences to the first of them."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.experiments.quality.table2_cells import chosen_cells
from linformer_kit.report import table2_figures
from linformer_kit.report.figures import save_figure
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


def test_trainings_with_other_seeds_are_not_shown():
    known = {"metrics": ["accuracy"], "diverged": False}
    cells = [cell("a", ["10", "11", "00"], **known), cell("b", ["10"], **known), cell("b", ["10"], **known)]
    cells[1]["tuning"] = True  # with the first seed
    cells[2]["runs"][0]["seed"] = 3
    shown = chosen_cells({"cells": cells, "settings": {"seeds": [0, 2]}})
    assert shown.keys() == {("a", "sst2")} and [run["seed"] for run in shown["a", "sst2"]["runs"]] == [0, 2]


@pytest.fixture
def panels(monkeypatch, tmp_path):
    """Draws accuracies of models by task; saves them and gives the panels."""

    def draw(models: list[str], right: dict[tuple[str, str], list[str]]) -> list:
        panels = []

        def save(figure, *where, **how):
            panels.extend(figure.axes)
            save_figure(figure, *where, **how)

        monkeypatch.setattr(table2_figures, "save_figure", save)
        chosen = {
            (model, task): cell(model, answers, task=task, texts={"validation": 1234})
            for (model, task), answers in right.items()
        }
        table2_figures.draw_table2({"models": dict.fromkeys(models), "tasks": ["sst2", "qqp"]}, tmp_path, chosen)
        return panels

    return draw


def points(axes, label: str) -> list[tuple[float, float]]:
    return [point for line in axes.lines if line.get_label() == label for point in zip(*line.get_data(), strict=True)]


def test_accuracies_are_drawn_from_the_first_model_down(panels, tmp_path):
    """With a panel for each task; a model that is not trained there leaves its row empty."""
    right = {("a", "sst2"): ["1110", "1100"], ("b", "sst2"): ["1111"], ("b", "qqp"): ["1000"]}
    sst2, qqp = panels(["a", "b"], right)
    assert [label.get_text() for label in sst2.get_yticklabels()] == ["a", "b"] and sst2.yaxis_inverted()
    assert [axes.get_title() for axes in (sst2, qqp)] == ["SST-2 (1,234 texts)", "QQP (1,234 texts)"]
    assert points(sst2, "each seed") == [(75.0, 0), (50.0, 0), (100.0, 1)]
    assert points(sst2, "mean") == [(62.5, 0), (100.0, 1)]
    assert [point[0] for point in points(sst2, "mean of the first")] == [62.5, 62.5]
    assert points(qqp, "each seed") == points(qqp, "mean") == [(25.0, 1)] and not points(qqp, "mean of the first")
    assert {path.name for path in tmp_path.iterdir()} == {"accuracy.png", "accuracy.svg"}


def test_names_of_models_are_drawn_as_they_are(panels, tmp_path):
    """They may have what would start a formula; long ones are shortened."""
    drawn = panels(["a$x_$", "b" * 80], {("a$x_$", "sst2"): ["10"]})
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["a$x_$", "b" * 29 + "…"]
    assert (tmp_path / "accuracy.png").exists()
    window = drawn[0].get_window_extent()
    legend = drawn[0].figure.legends[0].get_window_extent()
    assert window.width > 200 and legend.x0 >= 0 and legend.x1 <= drawn[0].figure.bbox.width


def test_a_point_is_as_wide_in_all_panels(panels):
    wide = panels(["a", "b"], {("a", "sst2"): ["1000"], ("b", "sst2"): ["1111"], ("a", "qqp"): ["1100"]})
    equal = panels(["a"], {("a", "sst2"): ["1110"], ("a", "qqp"): ["1100"]})
    for drawn, least in ((wide, 75.0), (equal, 2.0)):
        widths = [high - low for low, high in (axes.get_xlim() for axes in drawn)]
        assert widths[0] == pytest.approx(widths[1]) and widths[0] >= least
    assert sum(equal[0].get_xlim()) / 2 == pytest.approx(75.0)


def test_nothing_is_drawn_before_anything_is_trained(panels, tmp_path):
    assert panels(["a"], {}) == [] and not any(tmp_path.iterdir())
