"""A study of learning as tables: means, spreads and paired differences by hand; what diverged says so."""

from __future__ import annotations

import copy

import pytest

from linformer_kit.report import learning
from linformer_kit.report.learning_figures import draw_curves, draw_panels
from tests.report.bench_results import ENVIRONMENT


def trial(variant: str, rate: float, seed: int, loss: float | None, **more) -> dict:
    return {
        "name": f"a-{variant}-{rate}-{seed}",
        "kind": f"a-{variant}",
        "before": None,
        "cell": "a",
        "variant": variant,
        "learning_rate": rate,
        "seed": seed,
        "minutes": None,
        "updates": 20,
        "validation_loss": loss,
        "curve": [[0, 7.0], [10, 6.0], [20, loss]],
        "unigram_entropy": 6.25,
        "parameters": 1301 if variant == "full" else 1409,
        "corpus": {
            "fingerprint": "f",
            "vocab_size": 1009,
            "seq_len": 127,
            "train_sequences": 1301,
            "validation_sequences": 17,
        },
        **more,
    }


RESULTS = {
    "environment": ENVIRONMENT,
    "settings": {
        "title": "Of a test",
        "baseline": "full",
        "learning_rates": [0.001, 0.002],
        "tune": {},
        "seeds": [5, 6],
        "cells": {"a": {}, "b": {}},
        "variants": {"full": {}, "ours": {}, "fixed": {"learning_rates": [0.003]}},
    },
    "seconds_per_update": {},
    "learning_rates": {"full": 0.002, "ours": 0.001, "fixed": 0.003},
    "complete": False,
    "trials": [
        trial("full", 0.001, 5, 5.0),
        trial("full", 0.002, 5, 4.0),
        trial("full", 0.002, 6, 4.5),
        trial("ours", 0.001, 5, 4.25, by_projected_dim={"8": 4.5}, sentences={"prefix": 5.5}),
        trial("ours", 0.001, 6, 4.5, by_projected_dim={"8": 4.75}, sentences={"prefix": 5.25}),
        trial("ours", 0.002, 5, None),
        trial("fixed", 0.003, 5, None),
    ],
}


def cells_of(lines: list[str], variant: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(f"| {variant} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_learning_rates_that_were_tried():
    lines = learning.rates_table(RESULTS)
    assert "in cell a, seed 5" in lines[0] and "among those below too (seed 5)" in lines[0]
    assert cells_of(lines, "full") == ["full", "5.000", "**4.000**"]
    assert cells_of(lines, "ours") == ["ours", "**4.250**", "diverged"]
    assert not any("fixed" in line for line in lines)
    assert lines[-1] == "At the edge of what was tried, so perhaps not the best: full; ours."
    only = {**RESULTS["settings"], "variants": {"fixed": {"learning_rates": [0.003]}}}
    assert learning.rates_table({**RESULTS, "settings": only}) == ["Given, not tuned here."]


def test_losses_in_a_cell():
    lines = learning.cell_table(RESULTS, "a")
    assert "n 127, 1,301 sequences to train, 17 to validate, vocabulary 1,009; unigram entropy 6.250 nats." in lines[0]
    assert cells_of(lines, "full") == ["full", "1,301", "0.002", "20", "4.250 ± 0.354", "4.000, 4.500", "", "", ""]
    ours = ["ours", "1,409", "0.001", "20", "4.375 ± 0.177", "4.250, 4.500", "+0.125 ± 0.177"]
    ours += ["4.625 ± 0.177", "5.375 ± 0.177"]
    assert cells_of(lines, "ours") == ours
    assert cells_of(lines, "fixed")[4:7] == ["diverged", "diverged (seed 5)", ""]
    assert learning.cell_table(RESULTS, "b") == ["Nothing yet."]


def test_the_fit_by_k_is_of_variants_that_differ_in_k_alone():
    """Whatever they continue, and with whichever seeds and cells."""
    variants: dict[str, dict] = {"full": {}, "other": {"model.projected_dim": 2, "model.sharing": "none"}}
    variants |= {f"k {k}": {"after": "full", "seeds": [5], "model.projected_dim": k} for k in (4, 16, 64)}
    trials = [trial("full", 0.002, 5, 4.0), trial("other", 0.002, 5, 9.0)]
    trials += [trial(f"k {k}", 0.002, 5, 4 + k**-0.5) for k in (4, 16, 64)]
    settings = {**RESULTS["settings"], "variants": variants, "panels": {"p": {"cells": ["a"], "variants": [*variants]}}}
    results = {**RESULTS, "settings": settings, "trials": trials, "learning_rates": dict.fromkeys(variants, 0.002)}
    text = learning.study_tables(results, heading="##")
    assert text.rstrip().endswith("After all updates the gap changes as k^-0.50 within 0 %, from k 4 to 64.")


def test_an_unfinished_study_says_so():
    text = learning.learning_markdown(RESULTS)
    assert "Not complete: 7 trainings so far." in text and "Nothing yet." in text
    assert "Not complete" not in learning.learning_markdown({**RESULTS, "complete": True})


def test_losses_of_other_text_are_not_subtracted():
    results = copy.deepcopy(RESULTS)
    for entry in results["trials"]:
        if entry["variant"] == "ours":
            entry["corpus"]["seq_len"] = 61
    lines = learning.cell_table(results, "a")
    assert cells_of(lines, "ours (measured at n 61)")[4:7] == ["4.375 ± 0.177", "4.250, 4.500", ""]


def test_a_study_whose_baseline_is_not_there_yet():
    results = {**RESULTS, "trials": [entry for entry in RESULTS["trials"] if entry["variant"] != "full"]}
    lines = learning.cell_table(results, "a")
    assert "unigram entropy 6.250 nats." in lines[0]
    assert cells_of(lines, "ours")[4:7] == ["4.375 ± 0.177", "4.250, 4.500", ""]
    assert not any(line.startswith("| full |") for line in lines)


def test_minutes_of_those_before_count():
    results = copy.deepcopy(RESULTS)
    for entry in results["trials"]:
        entry["minutes"] = 3.0 if entry["variant"] == "full" else 1.0
        if entry["variant"] == "ours":
            entry["before"] = f"a-full-0.002-{entry['seed']}"
    results["seconds_per_update"] = {"a-full": 0.25, "a-ours": 0.5}
    lines = learning.cell_table(results, "a")
    assert cells_of(lines, "full")[7:9] == ["3.000", "250.000"] and cells_of(lines, "ours")[7:9] == ["4.000", "500.000"]


def test_memory_of_an_update():
    """In MiB, rounded; empty for variants where it is not known."""
    peaks = {"a-full": 1301 * 2**20 + 2**19 + 1}
    lines = learning.cell_table({**RESULTS, "peak_bytes_of_update": peaks}, "a")
    assert "| minus full | memory of an update, MiB | run with k 8 |" in "\n".join(lines)
    assert cells_of(lines, "full")[7] == "1302" and cells_of(lines, "ours")[7] == ""


@pytest.mark.parametrize("minutes", [None, 3.0])
def test_curves(minutes, tmp_path, figures):
    results = copy.deepcopy(RESULTS)
    for entry in results["trials"]:
        entry["minutes"] = minutes
    curves = {variant: learning.at_chosen_rate(results, "a", variant) for variant in results["settings"]["variants"]}
    draw_curves(curves, tmp_path / "a.png", baseline="full", title="A")
    (axes,) = figures[0].axes
    assert [line.get_label() for line in axes.lines] == ["full (4.250)", "ours (4.375)"]
    assert axes.lines[1].get_xdata().tolist() == ([10, 20] if minutes is None else [1.5, 3.0])
    assert axes.lines[1].get_ydata().tolist() == [6.0, 4.375]
    assert axes.get_xlabel() == ("updates" if minutes is None else "minutes of this training")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_curves_of_many_variants(tmp_path, figures):
    """Six are drawn: the baseline, then those with more seeds, then the best."""

    def trained(loss, seeds=1):
        return [{"minutes": None, "validation_loss": loss, "curve": [[1, loss]], "updates": 1}] * seeds

    curves = {f"of {loss}": trained(loss) for loss in (1.0, 2.0, 3.0, 4.0, 5.0)}
    curves = {"diverged": trained(None), **curves, "twice": trained(8.0, seeds=2), "baseline": trained(9.0)}
    draw_curves(curves, tmp_path / "a.png", baseline="baseline", title="A")
    (axes,) = figures[0].axes
    assert [line.get_label().rsplit(" ", 1)[0] for line in axes.lines] == [
        "of 1.0",
        "of 2.0",
        "of 3.0",
        "of 4.0",
        "twice",
        "baseline",
    ]
    assert "6 of 7 variants" in figures[0].legends[0].get_title().get_text()


def test_panels_give_a_label_one_colour(tmp_path, figures):
    """Of the panel where it is first, unless an earlier line of the panel has that colour."""

    def panel(*labels: str) -> dict:
        return {label: [{"validation_loss": 1.0, "curve": [[1, 2.0], [2, 1.0]]}] for label in labels}

    panels = {"A": panel("full", "k 8"), "B": panel("other", "full"), "C": panel("other", "k 8", "new")}
    draw_panels(panels, tmp_path / "a.png")
    drawn = [{line.get_label().rsplit(" ", 1)[0]: line for line in axes.lines} for axes in figures[0].axes[:3]]
    assert [set(each) for each in drawn] == [set(each) for each in panels.values()]
    for look in ("color", "marker"):
        a, b, c = ({label: getattr(line, f"get_{look}")() for label, line in each.items()} for each in drawn)
        assert a["full"] == b["full"] and a["k 8"] == b["other"] == c["other"] and c["k 8"] == a["full"]
        assert all(len({*each.values()}) == len(each) for each in (a, b, c))
