"""`linformer bench learning`: the trainings of a study, resuming; a complete small study."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

import linformer_kit as lk
from linformer_kit import environment
from linformer_kit.commands.cli import main
from linformer_kit.errors import InputError
from linformer_kit.experiments import measure
from linformer_kit.experiments.learning import checks, learn, running, trials
from tests.experiments.learning.studies import (
    STUDY,
    InThisProcess,
    in_this_process,
    results_of,
    study,
    whole_study,
)

pytestmark = pytest.mark.e2e

MEASURABLE = sys.platform == "linux" or torch.accelerator.is_available()


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory) -> Path:
    """A completed study, run by command."""
    folder = tmp_path_factory.mktemp("study") / "out"
    whole_study(corpus)
    recipe = str(corpus / "study.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "in_fresh_process", in_this_process)
        main(["bench", "learning", "--recipe", recipe, "--output_dir", str(folder), "--processes", "2"])
    return folder


def test_a_study_tunes_and_compares(finished):
    results = results_of(finished)
    assert results["complete"] and results["learning_rates"].keys() == STUDY["variants"].keys()
    keys = [tuple(entry[name] for name in ("cell", "variant", "learning_rate", "seed")) for entry in results["trials"]]
    names = {entry["name"] for entry in results["trials"]}
    assert len(keys) == len(set(keys)) == len(names)
    rates = {"grown": 5e-3}
    for variant in ("full", "E, F"):
        tuned = {
            entry["learning_rate"]: entry["validation_loss"]
            for entry in results["trials"]
            if (entry["variant"], entry["cell"], entry["seed"]) == (variant, "short", 1)
        }
        rates[variant] = min(tuned, key=tuned.get)
        assert tuned.keys() == {1e-3, 1e-2}
    assert results["learning_rates"] == rates
    wanted = {(cell, variant, rates[variant], seed) for cell in STUDY["cells"] for variant in rates for seed in (1, 2)}
    tuning = {("short", variant, rate, 1) for variant in ("full", "E, F") for rate in (1e-3, 1e-2)}
    assert wanted | tuning == set(keys)


def test_what_is_measured(finished):
    results = results_of(finished)
    for entry in results["trials"]:
        updates = 2 if entry["variant"] == "grown" else 4
        assert entry["updates"] == updates and [step for step, _ in entry["curve"]] == list(range(0, updates + 1, 2))
        assert entry["validation_loss"] == entry["curve"][-1][1]
        forms = {""} if entry["variant"] == "full" else {"prefix", "stretch", "masked prefix"}
        assert set(entry["sentences"]) == forms
        assert entry.get("by_projected_dim", {}).keys() == (set() if entry["variant"] == "full" else {"3"})
        assert entry["corpus"]["seq_len"] == 58 if entry["variant"] == "grown" else 29 if "/" in entry["cell"] else 23
    kinds = {entry["kind"] for entry in results["trials"]}
    assert len(kinds) == 6 and results["seconds_per_update"].keys() == kinds
    assert all(0 < seconds < 60 for seconds in results["seconds_per_update"].values())
    assert results["peak_bytes_of_update"].keys() == (kinds if MEASURABLE else set())
    assert all(0 <= peak < 2**31 for peak in results["peak_bytes_of_update"].values())


def test_models_go_on_from_those_before(finished):
    """From the same cell and seed, at its chosen learning rate, and with a lower loss than a new model."""
    results = results_of(finished)
    by_name = {entry["name"]: entry for entry in results["trials"]}
    for entry in results["trials"]:
        if entry["variant"] == "grown":
            before = by_name[entry["before"]]
            assert (before["cell"], before["seed"], before["variant"]) == (entry["cell"], entry["seed"], "E, F")
            assert before["learning_rate"] == results["learning_rates"]["E, F"]
            assert entry["curve"][0][1] < before["curve"][0][1] - 0.01
            assert lk.LinformerConfig.from_pretrained(finished / "trials" / entry["name"]).max_position_embeddings == 58
        else:
            assert entry["before"] is None


def test_the_report(finished):
    text = (finished / "learning.md").read_text()
    assert "# Of a test" in text and "## short" in text and "## lo/ng" in text
    assert "| variant | 0.001 | 0.01 |" in text and text.count("**") == 4
    for name in ("curves-short.png", "curves-lo_ng.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")


def test_results_name_no_place_on_this_machine(finished, corpus):
    text = (finished / "learning.md").read_text() + (finished / "learning.json").read_text()
    assert str(finished) not in text and str(corpus) not in text
    assert '"*.txt"' in text and '"sentences.tsv"' in text


def test_going_on_trains_only_what_is_missing(finished, corpus, here, tmp_path):
    """Trainings that finished but were not yet recorded are not repeated."""
    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    results = results_of(folder)
    kept, last = results["trials"][:-1], results["trials"][-1]
    (folder / "learning.json").write_text(json.dumps(results | {"trials": kept, "complete": False}))
    before = (folder / "trials" / last["name"] / "checkpoint-2" / "model.safetensors").stat().st_mtime_ns
    again = learn.learn(dataclasses.replace(whole_study(corpus), output_dir=str(folder), resume=True)).results
    assert here == [last["name"]]
    repeated = again["trials"][-1]
    assert {**repeated, "seconds": 0, "tokens_per_second": 0} == {**last, "seconds": 0, "tokens_per_second": 0}
    assert (folder / "trials" / last["name"] / "checkpoint-2" / "model.safetensors").stat().st_mtime_ns == before


def test_a_study_may_grow_and_what_has_changed_is_trained_anew(corpus, untrained, tmp_path):
    """One more seed, one changed variant, and one whose name gives the same file name as another."""
    settings = dataclasses.replace(study(corpus), output_dir=str(tmp_path / "out"))
    before = {entry["name"] for entry in learn.learn(settings).results["trials"]}
    untrained.clear()
    variants = {
        **settings.variants,
        "full": {"model.attention": "full", "max_steps": 6},
        "E  F": {"learning_rates": [1e-2]},
    }
    changed = dataclasses.replace(settings, resume=True, seeds=[1, 2, 3], variants=variants)
    results = learn.learn(changed).results
    ran = [entry for entry in results["trials"] if entry["name"] in untrained]
    count = {variant: sum(entry["variant"] == variant for entry in ran) for variant in variants}
    assert count == {"full": 1 + 2 * 3, "E, F": 2, "grown": 2, "E  F": 2 * 3} and not before & set(untrained)
    assert {entry["updates"] for entry in results["trials"] if entry["variant"] == "full"} == {6}
    assert len({entry["name"] for entry in results["trials"]}) == len(results["trials"])


def test_a_variant_may_have_fewer_seeds(corpus, untrained, tmp_path):
    """Variants that continue it have the same seeds."""
    variants = {"full": {}, "ours": {"seeds": [2]}, "more": {"after": "ours"}}
    settings = study(corpus, variants=variants, learning_rates=[1e-3], cells={"short": {}})
    experiment = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    results, folder = experiment.results, experiment.folder
    ran = [(entry["variant"], entry["seed"]) for entry in results["trials"]]
    assert sorted(ran) == [("full", 1), ("full", 2), ("more", 2), ("ours", 2)]
    rows = [line.split(" | ") for line in (folder / "learning.md").read_text().splitlines() if line.startswith("| ")]
    assert {row[0]: row[5] for row in rows[2:]} == {
        "| full": "4.000, 4.000",
        "| ours": "4.000 (seed 2)",
        "| more": "4.000 (seed 2)",
    }


def test_a_cell_may_have_fewer_seeds_and_one_model_may_start_all(corpus, untrained, tmp_path):
    """The only training of a variant is continued with all seeds."""
    cells = {"short": {}, "lo/ng": {"seeds": [2]}}
    variants = {"full": {}, "once": {"cells": ["short"], "seeds": [1]}, "more": {"after": "once", "seeds": [1, 2]}}
    settings = study(corpus, variants=variants, cells=cells, learning_rates=[1e-3])
    results = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out"))).results
    ran = [(entry["variant"], entry["cell"], entry["seed"]) for entry in results["trials"]]
    full = [("full", "lo/ng", 2), ("full", "short", 1), ("full", "short", 2)]
    assert sorted(ran) == [*full, ("more", "short", 1), ("more", "short", 2), ("once", "short", 1)]
    before = {entry["variant"]: entry["before"] for entry in results["trials"]}
    assert before["more"] in {entry["name"] for entry in results["trials"] if entry["variant"] == "once"}


def test_what_continues_a_changed_variant_is_trained_anew(corpus, untrained, tmp_path):
    variants = {"full": {}, "ours": {}, "more": {"after": "ours"}}
    settings = study(corpus, variants=variants, learning_rates=[1e-3], seeds=[1], cells={"short": {}})
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    learn.learn(settings)
    untrained.clear()
    changed = dataclasses.replace(settings, resume=True, variants=variants | {"ours": {"max_steps": 6}})
    results = learn.learn(changed).results
    assert [entry["variant"] for entry in results["trials"]] == ["full", "ours", "more"] and len(untrained) == 2
    assert results["trials"][-1]["before"] == results["trials"][1]["name"]


def test_a_variant_may_have_fewer_cells(corpus, untrained, drawn, tmp_path):
    """Variants that continue it have the same cells; a panel draws what is there."""
    variants = {"full": {}, "ours": {"cells": ["lo/ng"]}, "more": {"after": "ours"}}
    panels = {"both": {"cells": ["short", "lo/ng"], "variants": ["full", "ours"]}}
    settings = study(corpus, variants=variants, learning_rates=[1e-3], seeds=[1], panels=panels)
    experiment = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    ran = [(entry["variant"], entry["cell"]) for entry in experiment.results["trials"]]
    assert sorted(ran) == [("full", "lo/ng"), ("full", "short"), ("more", "lo/ng"), ("ours", "lo/ng")]
    short, long = (experiment.folder / "learning.md").read_text().split("## short")[1].split("## lo/ng")
    assert "| ours |" not in short and "| ours |" in long
    svg = (experiment.folder / "panels.svg").read_text()
    assert (experiment.folder / "panels.png").stat().st_size > 10_000 and "<!-- both -->" in svg
    labels = [f"{variant}, {cell} (55)" for cell, variant in (("short", "full"), ("lo/ng", "full"), ("lo/ng", "ours"))]
    assert all(f"<!-- {label} -->" in svg for label in labels) and svg.count("(55) -->") == 3
    assert [path.name for path in experiment.folder.glob("curves-*.png")] == ["curves-lo_ng.png"]  # one line is none


def test_variants_converted_from_one_with_full_attention(corpus, tmp_path, here):
    """Once trained in its only cell, with its weights and E and F as new, at the length of each cell."""
    variants = {
        "full": {"model.attention": "full", "cells": ["short"]},
        "ours": {
            "after": "full",
            "model.projected_dim": 5,
            "cells": ["short", "lo/ng"],
            "max_steps": 2,
            "save_steps": 1,
        },
        "theirs": {"after": "full", "model.attention": "full", "cells": ["lo/ng"], "max_steps": 2},
    }
    settings = study(corpus, variants=variants, learning_rates=[1e-3], seeds=[1])
    learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    assert len(here) == len(set(here)) == 4
    one, other = (study(corpus, variants=variants, base={"resize_mode": mode}) for mode in ("extend", "interpolate"))
    kinds = [{trial.kind for trial in checks.one_of_each_kind(each)} for each in (one, other)]
    assert len(kinds[0] & kinds[1]) == 1  # the model that is converted
    started, *others = here
    for name in others:
        folder = tmp_path / "out" / "trials" / name
        model, begun = (lk.LinformerForMaskedLM.from_pretrained(path) for path in (folder, folder / "start"))
        assert model.config.attention == ("full" if "theirs" in name else "linformer")
        assert model.config.max_position_embeddings == (29 if "lo_ng" in name else 23)
        assert model.config.attention == "full" or model.config.projected_dim == 5
        source = lk.LinformerForMaskedLM.from_pretrained(tmp_path / "out" / "trials" / started).state_dict()
        kept = {key for key, tensor in begun.state_dict().items() if key in source and tensor.equal(source[key])}
        positions = set() if "short" in name else {"linformer.embeddings.position_embeddings.weight"}
        assert kept == source.keys() - positions
    entries = {entry["name"]: entry for entry in results_of(tmp_path / "out")["trials"]}
    assert {entries[name]["before"] for name in others} == {started}
    assert all(entries[name]["curve"][0][1] < entries[started]["curve"][0][1] for name in others)
    trial = trials.make_trial(settings, "lo/ng", "ours", 1e-3, 1, {"full": 1e-3})
    assert trial.name in others and running.cost_of_update(trial, tmp_path / "out", 1).seconds > 0
    # As if interrupted before its last update: the same curve, and the start is not made again.
    folder = tmp_path / "out" / "trials" / trial.name
    shutil.rmtree(folder / "checkpoint-2")
    kept = (folder / "start" / "model.safetensors").stat().st_mtime_ns
    again = running.run_trial(trial, tmp_path / "out", 1, [], None)
    assert again["curve"] == entries[trial.name]["curve"] and (folder / "checkpoint-2").is_dir()
    assert (folder / "start" / "model.safetensors").stat().st_mtime_ns == kept


def test_a_study_that_was_killed_before_its_first_result_goes_on(corpus, untrained, tmp_path, monkeypatch):
    settings = dataclasses.replace(study(corpus, variants={"full": {}}, learning_rates=[1e-3]), seeds=[1])
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    with monkeypatch.context() as patched:
        patched.setattr(learn, "run_trial", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learn.learn(settings)
    with pytest.raises(InputError, match="output_dir: expected a new or empty folder"):
        learn.learn(settings)
    assert learn.learn(dataclasses.replace(settings, resume=True)).results["complete"]


class Killed(InThisProcess):
    """A pool whose second process is killed; the others succeed, some of them later."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.work = []

    def submit(self, *work):
        future = Future()
        self.work.append((future, *work))
        if len(self.work) == 2:
            future.set_exception(BrokenProcessPool("terminated abruptly"))
        return super().submit(*work) if len(self.work) == 1 else future

    def shutdown(self, **_):
        for future, function, *arguments in self.work[2:]:
            future.set_result(function(*arguments))


def test_nothing_finished_is_lost_where_a_process_is_killed(corpus, untrained, tmp_path, monkeypatch, capsys):
    whole_study(corpus)
    recipe, folder = str(corpus / "study.yaml"), tmp_path / "out"
    command = ["bench", "learning", "--recipe", recipe, "--output_dir", str(folder), "--processes", "1"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.setattr(learn, "fresh_processes", Killed)
        main(command)
    assert exit_.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "linformer: error: a process was killed, most likely because memory ran out; lower processes (1) or "
        "base.per_device_train_batch_size (3); --resume continues from what is saved"
    )
    assert len(results_of(folder)["trials"]) == len(untrained) == 3
    main([*command, "--resume"])
    assert results_of(folder)["complete"] and len(set(untrained)) == len(untrained)


def test_a_study_goes_on_where_it_began(finished, corpus):
    """Times of two machines are not comparable."""
    results = results_of(finished)
    path = finished / "learning.json"
    there = path.read_text()
    results["environment"]["device"] = "another machine"
    path.write_text(json.dumps(results))
    try:
        with pytest.raises(InputError, match=r"resume: expected device another machine, as in .*learning\.json, got "):
            learn.learn(dataclasses.replace(whole_study(corpus), output_dir=str(finished), resume=True))
    finally:
        path.write_text(there)


@pytest.mark.parametrize(
    ("commits", "expected"),
    [(("a", "a", "b", "b"), "a, b"), (("a", None, None), "a, unknown"), ((None, None), "unknown")],
)
def test_each_commit_is_named_once(corpus, untrained, tmp_path, monkeypatch, commits, expected):
    """One start may be outside a git checkout."""
    settings = study(corpus, learning_rates=[1e-3], variants={"full": {}}, cells={"short": {}}, seeds=[1])
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    for number, commit in enumerate(commits):
        monkeypatch.setattr(environment, "_commit", lambda commit=commit: commit)
        results = learn.learn(dataclasses.replace(settings, resume=number > 0)).results
    assert results["environment"]["commit"] == expected


def test_equal_time(corpus, untrained, tmp_path, monkeypatch):
    """Updates are timed once for all seeds and rates, one variant at a time; as many are made as fit."""
    cost = {"full": running.UpdateCost(0.5, 5 << 20)}
    monkeypatch.setattr(
        learn, "cost_of_update", lambda trial, *_: cost.get(trial.variant, running.UpdateCost(0.25, 3 << 20))
    )
    variants = {"full": {"model.attention": "full"}, "ours": {}, "more": {"after": "ours", "minutes": 0.025}}
    settings = study(corpus, minutes=0.05, variants=variants, learning_rates=[1e-3], cells={"short": {}})
    experiment = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    results, folder = experiment.results, experiment.folder
    assert sorted(results["seconds_per_update"].values()) == [0.25, 0.25, 0.5]
    updates = {entry["variant"]: entry["updates"] for entry in results["trials"]}
    assert updates == {"full": 6, "ours": 12, "more": 6}
    text = (folder / "learning.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| more |"))
    assert row.endswith("| 0.075 | 250.000 | 3 |")
    fewer = {name: variants[name] for name in ("full", "ours")}
    results = learn.learn(dataclasses.replace(settings, output_dir=str(folder), resume=True, variants=fewer)).results
    assert sorted(results["seconds_per_update"].values()) == [0.25, 0.5], "nothing of what is not studied any more"
    assert sorted(results["peak_bytes_of_update"].values()) == [3 << 20, 5 << 20]


@pytest.mark.parametrize(("minutes", "measured"), [(None, 0), (0.05, 1)])
def test_without_measure_updates_only_minutes_need_them(corpus, untrained, tmp_path, monkeypatch, minutes, measured):
    monkeypatch.setattr(learn, "cost_of_update", lambda *_: running.UpdateCost(0.25, 3 << 20))
    own = {"minutes": minutes, "measure_updates": False, "learning_rates": [1e-3], "seeds": [1]}
    settings = study(corpus, variants={"full": {}}, cells={"short": {}}, **own)
    results = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out"))).results
    assert results["complete"] and len(results["seconds_per_update"]) == measured


def test_a_study_killed_while_it_is_timed_keeps_the_times(corpus, untrained, tmp_path, monkeypatch):
    settings = study(corpus, minutes=0.05, variants={"full": {}}, learning_rates=[1e-3], cells={"short": {}})
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    with monkeypatch.context() as patched:
        patched.setattr(learn, "run_trial", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learn.learn(settings)
    monkeypatch.setattr(learn, "cost_of_update", None)  # calling it would fail
    results = learn.learn(dataclasses.replace(settings, resume=True)).results
    assert {entry["updates"] for entry in results["trials"]} == {6}


def test_what_diverges_is_said_and_ends_nothing(corpus, here, tmp_path):
    settings = study(corpus, learning_rates=[1e30, 1e31], variants={"full": {}, "ours": {"learning_rates": [1e-3]}})
    settings = dataclasses.replace(
        settings, base=dataclasses.replace(settings.base, warmup_steps=0, max_grad_norm=1e30)
    )
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"), cells={"short": {}}, seeds=[1])
    experiment = learn.learn(settings)
    results, folder = experiment.results, experiment.folder
    losses = {(entry["variant"], entry["learning_rate"]): entry["validation_loss"] for entry in results["trials"]}
    assert losses["full", 1e30] is None and losses["full", 1e31] is None and losses["ours", 1e-3] is not None
    text = (folder / "learning.md").read_text()
    assert "| full | **diverged** | diverged |" in text and "| 1e+30 | 1 | diverged | diverged |  |" in text


def test_what_continues_a_training_that_diverged_is_left_and_said(corpus, here, tmp_path):
    """Nor are losses measured that need its model."""
    variants = {
        "start": {"learning_rates": [1e30]},
        "next": {"after": "start"},
        "last": {"after": "next"},
        "full": {},
    }
    settings = study(corpus, learning_rates=[1e-3], variants=variants, cells={"short": {}}, seeds=[1])
    base = dataclasses.replace(settings.base, warmup_steps=0, max_grad_norm=1e30)
    settings = dataclasses.replace(settings, base=base, projected_dims=[1], output_dir=str(tmp_path / "out"))
    for resume in (False, True):
        experiment = learn.learn(dataclasses.replace(settings, resume=resume))
        losses = {entry["variant"]: entry["validation_loss"] for entry in experiment.results["trials"]}
        assert losses.keys() == {"start", "full"} and losses["start"] is None and experiment.results["complete"]
        said = "Not trained, since what they continue diverged: next, short, seed 1; last, short, seed 1."
        assert said in experiment.text
    with pytest.raises(InputError, match=r"^resume: expected projected_dims as in "):
        learn.learn(dataclasses.replace(settings, resume=True, projected_dims=[2]))


def test_other_texts_of_the_same_name_are_not_resumed(corpus, here, tmp_path, monkeypatch):
    """And that is said before anything is trained."""
    settings = study(corpus, learning_rates=[1e-3], variants={"full": {}}, cells={"short": {}}, seeds=[1])
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    learn.learn(settings)
    shutil.copytree(corpus, tmp_path / "other")
    next((tmp_path / "other").glob("*.txt")).write_text("def another(): return function\n" * 17, encoding="utf-8")
    base = dataclasses.replace(settings.base, train_file=[str(tmp_path / "other" / "*.txt")])
    monkeypatch.setattr(learn, "run_trial", None)
    with pytest.raises(InputError, match=r"^resume: expected the texts of short-full-"):
        learn.learn(dataclasses.replace(settings, base=base, seeds=[1, 2], resume=True))


def test_a_system_that_does_not_report_memory_measures_time(corpus, here, tmp_path, monkeypatch):
    """No entry, no column and no error."""
    monkeypatch.setattr(measure, "_CLEAR_REFS", tmp_path / "none")
    monkeypatch.setattr(learn, "cost_of_update", running.cost_of_update)
    settings = study(corpus, learning_rates=[1e-3], variants={"full": {}}, cells={"short": {}}, seeds=[1])
    experiment = learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    assert len(experiment.results["seconds_per_update"]) == 1 and experiment.results["peak_bytes_of_update"] == {}
    assert "| an update, ms |" in experiment.text and "MiB" not in experiment.text


def test_results_without_memory_are_resumed(corpus, untrained, tmp_path, monkeypatch):
    """As written by earlier versions: known times are not measured again, so their memory stays unknown."""
    settings = study(corpus, learning_rates=[1e-3], variants={"full": {}}, cells={"short": {}}, seeds=[1])
    settings = dataclasses.replace(settings, output_dir=str(tmp_path / "out"))
    results = learn.learn(settings).results
    path = tmp_path / "out" / "learning.json"
    path.write_text(json.dumps({name: value for name, value in results.items() if name != "peak_bytes_of_update"}))
    measured = []

    def cost(trial, *_):
        measured.append(trial.variant)
        return running.UpdateCost(0.25, (5 if len(measured) == 1 else 7) << 20)

    monkeypatch.setattr(learn, "cost_of_update", cost)
    more = dataclasses.replace(settings, resume=True, variants={"full": {}, "ours": {}})
    experiment = learn.learn(more)
    assert measured == ["ours"] * 2
    lines = experiment.text.splitlines()
    assert [line.split(" | ")[-2:] for line in lines if line.startswith(("| full", "| ours"))] == [
        ["500.000", " |"],
        ["250.000", "7 |"],
    ]


def test_resuming_needs_a_folder(corpus):
    with pytest.raises(InputError, match="resume: expected an output_dir to resume in, got none"):
        learn.learn(dataclasses.replace(study(corpus), resume=True))
