"""`linformer bench learning`: the trainings of a study, resuming, rejected settings; a complete small study."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import linformer_kit as lk
from linformer_kit.commands.cli import main
from linformer_kit.commands.parser import parse
from linformer_kit.commands.table import RECIPES
from linformer_kit.errors import InputError
from linformer_kit.experiments import measure
from linformer_kit.experiments.learning import checks, learn, running, trials
from linformer_kit.experiments.measure import in_fresh_process
from linformer_kit.operator.projections.starts import STARTS
from linformer_kit.settings.study import LearningSettings
from linformer_kit.training.loop import Training
from tests.conftest import PRETRAIN_SIZES, write_corpus

pytestmark = pytest.mark.e2e

MEASURABLE = sys.platform == "linux" or torch.accelerator.is_available()
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
BASE = {
    "model": PRETRAIN_SIZES,
    "mlm_probability": 0.4,
    "max_steps": 4,
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 5,
    "learning_rate": 1e-3,
    "warmup_steps": 1,
    "eval_steps": 2,
    "save_steps": 2,
    "split_seed": 0,
    "report_to": "none",
}
STUDY = {
    "title": "Of a test",
    "baseline": "full",
    "learning_rates": [1e-3, 1e-2],
    "seeds": [1, 2],
    "cells": {"short": {}, "lo/ng": {"model.max_position_embeddings": 29, "english": True}},
    "variants": {
        "full": {"model.attention": "full"},
        "E, F": {},
        "grown": {"after": "E, F", "learning_rates": [5e-3], "resize_to": 58, "max_steps": 2},
    },
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("text"))
    (folder / "sentences.tsv").write_text("sentence\tlabel\n" + "first function and second\t1\n" * 3 + "no\t0\n")
    return folder


def study(corpus: Path, **changes) -> LearningSettings:
    base = {**BASE, "train_file": [str(corpus / "*.txt")], "cache_dir": str(corpus.parent / "cache")}
    fields = {**STUDY, "english_file": [str(corpus / "1*.txt")], **changes, "base": base | changes.get("base", {})}
    path = corpus / "study.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return parse(["bench", "learning", "--recipe", str(path)])[1]


def whole_study(corpus: Path) -> LearningSettings:
    return study(corpus, projected_dims=[3], sentence_file=[str(corpus / "sentences.tsv")])


class InThisProcess:
    """A pool that runs everything in this process."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future

    def shutdown(self, **_):
        pass


def in_this_process(function, *arguments):
    return function(*arguments)


@pytest.fixture
def here(monkeypatch):
    """Trainings run in this process, one after the other; their names, in order."""
    ran: list[str] = []

    def run(trial, *rest):
        ran.append(trial.name)
        return running.run_trial(trial, *rest)

    monkeypatch.setattr(learn, "fresh_processes", InThisProcess)
    monkeypatch.setattr(learn, "in_fresh_process", in_this_process)
    monkeypatch.setattr(learn, "cost_of_update", lambda *_: running.UpdateCost(0.5, 3 << 20))
    monkeypatch.setattr(learn, "run_trial", run)
    return ran


@pytest.fixture
def untrained(here, monkeypatch):
    """Replace training by made-up results."""

    def run(trial, *_):
        here.append(trial.name)
        said = ("name", "kind", "cell", "variant", "learning_rate", "seed", "minutes", "before")
        updates = trial.settings.max_steps
        corpus = {"fingerprint": "f", "seq_len": 23, "vocab_size": 277, "train_sequences": 5, "validation_sequences": 3}
        made = {"updates": updates, "validation_loss": 4.0, "curve": [[0, 5.0], [updates, 4.0]], "corpus": corpus}
        made |= {"unigram_entropy": 4.5, "parameters": 1301}
        return {**{name: getattr(trial, name) for name in said}, **made}

    monkeypatch.setattr(learn, "run_trial", run)
    return here


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


def results_of(folder: Path) -> dict:
    return json.loads((folder / "learning.json").read_text())


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
    labels = [
        f"{variant}, {cell} (54.6)" for cell, variant in (("short", "full"), ("lo/ng", "full"), ("lo/ng", "ours"))
    ]
    assert all(f"<!-- {label} -->" in svg for label in labels) and svg.count("(54.6) -->") == 3


def test_variants_converted_from_one_with_full_attention(corpus, tmp_path, here):
    """Once trained in its only cell, with its weights and E and F as new, at the length of each cell."""
    variants = {
        "full": {"model.attention": "full", "cells": ["short"]},
        "ours": {"after": "full", "model.projected_dim": 5, "cells": ["short", "lo/ng"], "max_steps": 2},
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


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (
            {"full": {}, "one": {"cells": ["short"]}, "more": {"after": "one", "cells": ["lo/ng"]}},
            "variants.more.cells: expected some of ['short'], those of one, got ['lo/ng']",
        ),
        (
            {"full": {"learning_rates": [1e-3, 1e-2], "cells": ["lo/ng"]}},
            "variants.full.cells: expected short among them, where its learning rates are tried, got ['lo/ng']",
        ),
        (
            {"full": {"cells": ["short", "shor"]}},
            "variants.full.cells: expected one or more of short, lo/ng, each once, got ['short', 'shor']",
        ),
        (
            {"full": {"cells": ["short", "short"]}},
            "variants.full.cells: expected one or more of short, lo/ng, each once, got ['short', 'short']",
        ),
        (
            {"full": {}, "more": {"after": "one"}, "one": {"seeds": [2]}, "most": {"after": "one", "seeds": [1]}},
            "variants.most.seeds: expected some of [2], those of one, got [1]",
        ),
        (
            {"full": {"model.attention": "full"}, "more": {"after": "full", "model.hidden_size": 66}},
            "variants.more.model.hidden_size: expected 33, as `after` has, got 66",
        ),
        (
            {
                "full": {"model.attention": "full"},
                "more": {"after": "full", "model.max_position_embeddings": 11, "resize_mode": "extend"},
            },
            "variants.more.model.max_position_embeddings: expected 23 or more with resize_mode extend, got 11",
        ),
        (
            {
                "full": {},
                "more": {"after": "full", "resize_to": 46},
                "most": {"after": "more", "model.sharing": "none"},
            },
            "variants.most.after: expected a variant with full attention, as this one has settings of the model",
        ),
        (
            {"full": {"model.attention": "full"}, "more": {"after": "full", "model.projected_dim": 5, "resize_to": 46}},
            "resize_to: expected none where the model is converted (to its cell's n), got 46",
        ),
        ({"full": {"seeds": [1]}}, "variants.full.seeds: expected all of [1, 2] for the baseline, got [1]"),
    ],
)
def test_seeds_and_cells_that_are_missing(corpus, tmp_path, variants, message):
    refused(study(corpus, variants=variants, learning_rates=[1e-3]), tmp_path, message)


@pytest.mark.parametrize("name", [path.stem for path in (RECIPES / "learning").glob("[!_]*.yaml")])
def test_variants_start_as_their_names_say(name):
    """Whatever the default is; a recipe may say it for all of its variants."""
    settings = parse(["bench", "learning", "--recipe", name])[1]
    own = yaml.safe_load((RECIPES / "learning" / f"{name}.yaml").read_text()).get("base", {}).get("model", {})
    for trial in checks.one_of_each_kind(dataclasses.replace(settings, english_file=["x"])):
        said = [start for start in STARTS if start in trial.variant.replace(",", "").split()]
        shifted = trial.variant.startswith("linear")
        default = "shifted_pooling" if shifted else own.get("projection_initializer", "pooling")
        assert trial.settings.model.projection_initializer == (said or [default])[0]


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


def trial_of(settings: LearningSettings, cell: str, variant: str, rate: float = 1e-3, seed: int = 1) -> trials.Trial:
    return trials.make_trial(settings, cell, variant, rate, seed, {"E, F": 1e-2})


def test_a_trial_is_base_then_cell_then_variant(corpus):
    settings = study(corpus, variants={"x": {"model.projected_dim": 5, "adam_beta2": 0.9}}, baseline="x")
    trial = trial_of(settings, "lo/ng", "x", 3e-4, 7)
    assert trial.name.startswith("lo_ng-x-lr0.0003-seed7-")
    assert (trial.settings.model.max_position_embeddings, trial.settings.model.projected_dim) == (29, 5)
    assert (trial.settings.learning_rate, trial.settings.seed) == (3e-4, 7)
    assert trial.settings.train_file == [str(corpus / "1*.txt")]
    assert (trial.settings.adam_beta2, settings.base.adam_beta2) == (0.9, 0.98)


@pytest.mark.parametrize("asked", ["true", "false"])
def test_a_variant_may_set_mixed_precision(corpus, asked):
    """Its setting is a name, which YAML and the parser take for a bool; activation checkpointing is a bool."""
    settings = study(corpus, variants={"full": {"bf16": asked, "activation_checkpointing": True}})
    trial = trial_of(settings, "short", "full")
    assert (trial.settings.bf16, trial.settings.activation_checkpointing) == (asked, True)


def test_names_of_trials(corpus, tmp_path):
    """They depend on what is trained, not on paths."""
    settings = study(corpus)
    settings.variants["E  F"] = {}
    names = {trial_of(settings, cell, variant).name for cell in settings.cells for variant in settings.variants}
    assert len(names) == 8
    moved = dataclasses.replace(settings, english_file=["/elsewhere/1*.txt"], processes=3, title="Another")
    moved.base.cache_dir = str(tmp_path)
    assert {trial_of(moved, cell, variant).name for cell in moved.cells for variant in moved.variants} == names
    one, other = trial_of(settings, "short", "E, F"), trial_of(settings, "short", "E, F", 1e-2, 5)
    assert one.kind == other.kind and one.name != other.name


def test_equal_time_makes_the_number_of_updates(corpus):
    base = {"max_steps": 100, "warmup_steps": 10, "eval_steps": 50, "save_steps": 25}
    trial = trials.timed(trial_of(study(corpus, minutes=2.0, base=base), "short", "full"), 0.5)
    assert (trial.settings.max_steps, trial.settings.warmup_steps) == (240, 24)
    assert (trial.settings.eval_steps, trial.settings.save_steps) == (120, 60)


def test_the_time_of_an_update_is_a_median(corpus, tmp_path, monkeypatch):
    """Of 20 updates after the first ones; a slow one has no more weight."""
    clock = iter([*range(10), 1000, *range(1001, 1100)])
    monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert running.cost_of_update(trial_of(study(corpus), "short", "full"), tmp_path, 1).seconds == 1


class MadeUpMemory:
    """A process whose peak grows by 3 bytes with each update and by 1,000 with an evaluation."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0

    def bytes_so_far(self) -> int:
        return self.bytes


def test_the_memory_of_an_update_is_that_of_all_updates_without_the_evaluation(corpus, tmp_path, monkeypatch):
    """The updates run between two readings; evaluation, with its larger batches, comes after them."""
    memory = MadeUpMemory(torch.device("cpu"))

    class Recording(Training):
        def _update(self, data):
            memory.bytes += 3
            super()._update(data)

        def _evaluate(self):
            memory.bytes += 1000
            return super()._evaluate()

    monkeypatch.setattr(running, "Training", Recording)
    monkeypatch.setattr(running, "PeakMemory", lambda device: memory)
    assert running.cost_of_update(trial_of(study(corpus), "short", "full"), tmp_path, 1).peak_bytes == 25 * 3
    assert memory.bytes == 25 * 3 + 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read from /proc")
def test_memory_of_an_update_holds_what_the_optimizer_keeps(corpus, tmp_path):
    """Weights do not count. Gradients and both moments of AdamW count: three times their size."""
    wide = {"model.intermediate_size": 40_009, "per_device_train_batch_size": 1}
    trial = trial_of(study(corpus, variants={"full": wide}), "short", "full")
    weights = 2 * 2 * 33 * 40_009 * 4  # of two layers' feed-forward matrices
    peak = in_fresh_process(running.cost_of_update, trial, tmp_path, 1).peak_bytes
    assert 3 * weights < peak < 10 * weights, "the libraries alone take more"


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "half"}, "baseline: expected one of full, E, F, grown, got half"),
        ({"seeds": []}, "seeds: expected at least one, got none"),
        ({"seeds": [1, 1]}, "seeds: expected a list of different numbers from 0 to 4294967295, got [1, 1]"),
        ({"seeds": [-1]}, "seeds: expected a list of different numbers from 0 to 4294967295, got [-1]"),
        ({"learning_rates": [1e-3, 1e-3]}, "learning_rates: expected a list of different numbers above 0"),
        ({"learning_rates": [0.0]}, "learning_rates: expected a list of different numbers above 0, got [0.0]"),
        ({"projected_dims": [0]}, "projected_dims: expected 1 or more, got [0]"),
        ({"minutes": -3}, "minutes: expected more than 0, got -3"),
        ({"processes": 0}, "processes: expected 1 or more, got 0"),
        ({"tune": {"cell": "none"}}, "tune.cell: expected one of short, lo/ng, got none"),
        ({"tune": {"cell": ["none"]}}, "tune.cell: expected one of short, lo/ng, got ['none']"),
        ({"tune": {"cel": "short"}}, "tune: expected cell and seed, got cel"),
        ({"tune": {"seed": -1}}, "tune.seed: expected 0 to 4294967295, got -1"),
        ({"panels": {"a": {"cells": ["short"]}}}, "panels.a: expected cells and variants, got cells"),
        (
            {"panels": {"a": {"cells": ["short"], "variants": ["half"]}}},
            "panels.a.variants: expected one or more of full, E, F, grown, each once, got ['half']",
        ),
        (
            {
                "variants": {"full": {}, "one": {"cells": ["short"]}},
                "baseline": "full",
                "tune": {"cell": "short"},
                "panels": {"a": {"cells": ["lo/ng"], "variants": ["one"]}},
            },
            "panels.a.cells: expected one of short for one, which is trained there, got ['lo/ng']",
        ),
        ({"english_file": None}, "english_file: expected files of English text for the cells, got none"),
        ({"english_file": ["nowhere.txt"]}, "english_file"),
        ({"sentence_file": ["nowhere.tsv"]}, "sentence_file"),
        ({"cells": {"short": {"english": 1}}}, "cells.short.english: expected true or false, got 1"),
        ({"cells": {"short": {"x.y": 3}}}, "cells.short.x.y: expected a setting of linformer pretrain"),
        ({"cells": {"short": {"seed": 3}}}, "cells.short.seed: expected a setting not fixed by the study, got seed"),
        ({"base": {"mlm_probability": 2.0}}, "mlm_probability: expected more than 0 and less than 1, got 2.0"),
        (
            {"base": {"compare_full": True}},
            "base.compare_full: expected False (the study determines it), got True",
        ),
    ],
)
def test_studies_refused(corpus, tmp_path, changes, message):
    refused(study(corpus, **changes), tmp_path, message)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"model.atention": "full"}, "variants.full.model.atention: expected a setting of linformer pretrain"),
        ({"model.attention": "half"}, "half"),
        (
            {"model": {"hidden_size": 3}},
            "variants.full.model: expected a setting of linformer pretrain, got an unknown",
        ),
        ({"model": 3}, "variants.full.model: expected a setting of linformer pretrain, got an unknown"),
        ({"max_steps": "many"}, "max_steps"),
        ({"learning_rate": 0.5}, "variants.full.learning_rate: expected a setting not fixed by the study"),
        ({"from_model": "x"}, "variants.full.from_model: expected a setting not fixed by the study"),
        (
            {"learning_rates": 4e-3},
            "variants.full.learning_rates: expected a list of different numbers above 0, got 0.004",
        ),
        ({"learning_rates": []}, "variants.full.learning_rates: expected a list of different numbers above 0, got []"),
        ({"seeds": 1}, "variants.full.seeds: expected a list of different numbers from 0 to 4294967295, got 1"),
        ({"seeds": [3]}, "variants.full.seeds: expected some of [1, 2], got [3]"),
        ({"minutes": "3x"}, "variants.full.minutes: expected more than 0, got 3x"),
        ({"minutes": float("inf")}, "variants.full.minutes: expected more than 0, got inf"),
        ({"after": "b", "learning_rates": [1e-3]}, "variants.full.after: expected another variant, got b"),
        ({"after": ["b"]}, "variants.full.after: expected another variant, got ['b']"),
        ({"after": "full", "learning_rates": [1e-3]}, "variants: expected `after` without cycles, got a cycle"),
        ({"after": "c"}, "variants.full.learning_rates: expected one, with `after`, got [0.001, 0.01]"),
        (
            {"after": "c", "learning_rates": [1e-3], "model.projected_dim": 5},
            "variants.full.after: expected a variant with full attention, as this one has settings of the model, got one w",
        ),
        ({"resize_to": 46}, "resize_to: expected none without `after`, got 46"),
        ({"elastic_projected_dims": [8]}, "elastic_projected_dims: expected one or more, each 1 to 7"),
    ],
)
def test_variants_refused(corpus, tmp_path, what, message):
    refused(study(corpus, variants={"full": what, "c": {}}), tmp_path, message)


def refused(settings: LearningSettings, tmp_path: Path, message: str) -> None:
    with pytest.raises(InputError) as error:
        learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_resuming_needs_a_folder(corpus):
    with pytest.raises(InputError, match="resume: expected an output_dir to resume in, got none"):
        learn.learn(dataclasses.replace(study(corpus), resume=True))


@pytest.mark.parametrize("path", sorted((RECIPES / "learning").glob("[a-z]*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_whole(path, tmp_path):
    """Each parses, every training of it could start, and the header has all fields."""
    (tmp_path / "text.txt").write_text("English")
    settings = parse(["bench", "learning", "--recipe", path.stem, "--english_file", str(tmp_path)])[1]
    checks.check(settings)
    header = path.read_text().split("\ntitle:")[0]
    for word in (path.stem, "Paper:", "Hardware:", "Time:", f"linformer bench learning --recipe {path.stem}"):
        assert word in header


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("learning-*/learning.json")), ids=lambda path: path.parent.name)
def test_committed_trainings_are_those_that_the_recipes_ask_for(path, tmp_path):
    """So a study resumed with the current recipe keeps them: no changed default has changed their meaning."""
    recipe = path.parent.name.removeprefix("learning-").partition("_")[0]
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("English")
    arguments = ["--recipe", recipe, "--english_file", str(tmp_path / "books"), "--base.cache_dir", str(tmp_path)]
    kinds = {trial.kind for trial in checks.one_of_each_kind(parse(["bench", "learning", *arguments])[1])}
    assert {entry["kind"] for entry in json.loads(path.read_text())["trials"]} <= kinds
