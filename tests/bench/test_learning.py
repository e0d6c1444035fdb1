"""`linformer bench learning`: which trainings a study has, what is resumed, what is refused; two small studies whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml

import linformer_kit as lk
from linformer_kit.bench import learning, trials
from linformer_kit.bench.settings import LearningSettings
from linformer_kit.cli import RECIPES, main, parse
from linformer_kit.errors import InputError
from linformer_kit.functional import spread_order

BASE = {
    "model": {
        "vocab_size": 277,
        "max_position_embeddings": 23,
        "projected_dim": 7,
        "hidden_size": 33,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 29,
    },
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
    "cells": {"short": {}, "long": {"model.max_position_embeddings": 29, "english": True}},
    "variants": {
        "full": {"model.attention": "full"},
        "E and F": {"learning_rates": [1e-2]},
        "grown": {"after": "E and F", "learning_rates": [1e-2], "resize_to": 58, "max_steps": 2},
    },
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(13):
        lines = [f"def function_{number}_{line}(first, second): return first + second" for line in range(17)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    (folder / "sentences.tsv").write_text("sentence\tlabel\n" + "first function and second\t1\n" * 3 + "no\t0\n")
    return folder


def study(corpus: Path, **changes) -> LearningSettings:
    base = {**BASE, "train_file": [str(corpus / "*.txt")], "cache_dir": str(corpus.parent / "cache")}
    fields = {**STUDY, "english_file": [str(corpus / "1*.txt")], **changes, "base": base | changes.get("base", {})}
    path = corpus / "study.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return parse(["bench", "learning", "--recipe", str(path)])[1]


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory) -> Path:
    """A study that is done, as a user runs one."""
    folder = tmp_path_factory.mktemp("study") / "out"
    study(corpus, projected_dims=[3], sentence_file=[str(corpus / "sentences.tsv")])
    main(["bench", "learning", "--recipe", str(corpus / "study.yaml"), "--output_dir", str(folder)])
    return folder


def results_of(folder: Path) -> dict:
    return json.loads((folder / "learning.json").read_text())


def test_a_study_tunes_and_compares(finished):
    results = results_of(finished)
    assert results["complete"] and results["learning_rates"].keys() == STUDY["variants"].keys()
    keys = [tuple(entry[name] for name in ("cell", "variant", "learning_rate", "seed")) for entry in results["trials"]]
    assert len(keys) == len(set(keys))
    tuned = {
        entry["learning_rate"]: entry["validation_loss"]
        for entry in results["trials"]
        if entry["variant"] == "full" and (entry["cell"], entry["seed"]) == ("short", 1)
    }
    best = min(tuned, key=tuned.get)
    assert tuned.keys() == {1e-3, 1e-2} and results["learning_rates"]["full"] == best
    rates = {"full": best, "E and F": 1e-2, "grown": 1e-2}
    wanted = {(cell, variant, rates[variant], seed) for cell in STUDY["cells"] for variant in rates for seed in (1, 2)}
    assert wanted | {("short", "full", rate, 1) for rate in tuned} == set(keys)


def test_what_is_measured(finished):
    for entry in results_of(finished)["trials"]:
        updates = 2 if entry["variant"] == "grown" else 4
        assert entry["updates"] == updates and [step for step, _ in entry["curve"]] == list(range(0, updates + 1, 2))
        assert entry["validation_loss"] == entry["curve"][-1][1]
        assert set(entry["sentences"]) == (
            {""} if entry["variant"] == "full" else {"prefix", "stretch", "masked prefix"}
        )
        assert entry.get("by_projected_dim", {}).keys() == (set() if entry["variant"] == "full" else {"3"})
        assert "description" not in entry["corpus"]
        grown = entry["variant"] == "grown"
        assert entry["corpus"]["seq_len"] == 58 if grown else {"short": 23, "long": 29}[entry["cell"]]
        assert (entry["after"] == "E and F") == grown


def test_models_go_on_from_those_before(finished):
    """A grown one starts with the loss of the old one stretched out, not with that of a new model."""
    by_key = {
        (e["cell"], e["variant"], e["seed"]): e for e in results_of(finished)["trials"] if e["learning_rate"] == 1e-2
    }
    grown = by_key["short", "grown", 1]["curve"][0][1]
    assert grown < by_key["short", "E and F", 1]["curve"][0][1] - 0.1
    folder = finished / "trials" / "short-grown-lr0.01-seed1"
    assert lk.LinformerConfig.from_pretrained(folder).max_position_embeddings == 58


def test_the_report(finished, capsys):
    text = (finished / "learning.md").read_text()
    assert "# Of a test" in text and "## short" in text and "## long" in text
    assert "| variant | 0.001 | 0.01 |" in text and text.count("**") == 2
    assert (finished / "curves-short.png").read_bytes().startswith(b"\x89PNG")
    assert str(finished) not in text + (finished / "learning.json").read_text()


def test_resuming_trains_only_what_is_missing(finished, corpus, monkeypatch):
    results = results_of(finished)
    kept = results["trials"][:-1]
    (finished / "learning.json").write_text(json.dumps(results | {"trials": kept, "complete": False}))
    ran = []
    real = trials.run_trial
    monkeypatch.setattr(learning, "run_trial", lambda trial, *rest: ran.append(trial.name) or real(trial, *rest))
    monkeypatch.setattr(learning, "fresh_processes", InThisProcess)
    settings = study(corpus, projected_dims=[3], sentence_file=[str(corpus / "sentences.tsv")])
    again, _ = learning.learn(dataclasses.replace(settings, output_dir=str(finished), resume=True))
    last = results["trials"][-1]
    assert len(ran) == 1 and ran[0].endswith(f"seed{last['seed']}")
    repeated = next(entry for entry in again["trials"] if entry not in kept)
    assert repeated["validation_loss"] == last["validation_loss"], "it was finished, so nothing was trained again"


class InThisProcess:
    """A pool of processes that is none."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        from concurrent.futures import Future

        future = Future()
        future.set_result(function(*arguments))
        return future


def test_a_study_is_not_resumed_as_another_one(finished, corpus):
    changed = study(corpus, projected_dims=[3], sentence_file=[str(corpus / "sentences.tsv")], base={"max_steps": 5})
    with pytest.raises(InputError, match=r"resume: expected base as in .*learning\.json"):
        learning.learn(dataclasses.replace(changed, output_dir=str(finished), resume=True))
    with pytest.raises(InputError, match="output_dir: expected a new or empty folder"):
        learning.learn(dataclasses.replace(study(corpus), output_dir=str(finished)))


def test_a_trial_is_base_then_cell_then_variant(corpus):
    settings = study(corpus, variants={"x": {"model.projected_dim": 5, "trainer.adam_beta2": 0.9}}, baseline="x")
    trial = trials.make_trial(settings, "long", "x", 3e-4, 7)
    assert trial.name == "long-x-lr0.0003-seed7"
    assert (trial.settings.model.max_position_embeddings, trial.settings.model.projected_dim) == (29, 5)
    assert (trial.settings.learning_rate, trial.settings.seed) == (3e-4, 7)
    assert trial.settings.train_file == [str(corpus / "1*.txt")]
    assert trial.settings.trainer == {"adam_beta2": 0.9} and settings.base.trainer == {}


def test_equal_time_makes_the_number_of_updates(corpus):
    settings = study(
        corpus, minutes=2.0, base={"max_steps": 100, "warmup_steps": 10, "eval_steps": 50, "save_steps": 25}
    )
    trial = trials.timed(trials.make_trial(settings, "short", "full", 1e-3, 1), 0.5)
    assert (trial.settings.max_steps, trial.settings.warmup_steps) == (240, 24)
    assert (trial.settings.eval_steps, trial.settings.save_steps) == (120, 60)


def test_the_time_of_an_update_is_measured(corpus, tmp_path):
    trial = trials.make_trial(study(corpus), "short", "full", 1e-3, 1)
    assert 0 < trials.seconds_per_update(trial, tmp_path, 1) < 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "half"}, "baseline: expected one of full, E and F, grown, got half"),
        ({"seeds": []}, "seeds: expected at least one, got none"),
        (
            {"variants": {"full": {"model.atention": "full"}}},
            "model.atention: expected a setting of linformer pretrain",
        ),
        ({"variants": {"full": {"model.attention": "half"}}}, "half"),
        ({"variants": {"full": {"max_steps": "many"}}}, "max_steps"),
        ({"variants": {"full": {"after": "other", "learning_rates": [1e-3]}}}, "full.after: expected another variant"),
        (
            {"variants": {"full": {"after": "full", "learning_rates": [1e-3]}}},
            "after: expected no variant after itself",
        ),
        ({"variants": {"full": {}, "b": {"after": "full"}}}, "b.learning_rates: expected one, with `after`"),
        ({"english_file": None}, "english_file: expected files of English text, as cells ask for it, got none"),
        ({"tune": {"cell": "none"}}, "tune.cell: expected one of short, long, got none"),
        ({"processes": 0}, "processes: expected 1 or more, got 0"),
    ],
)
def test_studies_refused(corpus, tmp_path, changes, message):
    with pytest.raises(InputError) as error:
        learning.learn(dataclasses.replace(study(corpus, **changes), output_dir=str(tmp_path / "out")))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_short_texts_are_padded_and_measured_as_alone(corpus, tmp_path, config):
    """The loss of padded sentences is the mean over their tokens of what each gives alone."""
    rows = [{"input_ids": torch.arange(5, 5 + n), "labels": torch.arange(5, 5 + n)} for n in (11, 17)]
    batch = trials._padded(rows)
    model = lk.LinformerForMaskedLM(config()).eval()
    together = trials.mean_token_loss(model, [batch], bf16=False)
    alone = [trials.mean_token_loss(model, [{k: v[None] for k, v in row.items()}], bf16=False) for row in rows]
    assert together == pytest.approx((11 * alone[0] + 17 * alone[1]) / 28, rel=1e-5)


def test_slots_that_no_token_has_reached_are_masked(config):
    """6 tokens of 36 reach windows 0 and 1 of 9, and those alone are attended to."""
    model = lk.LinformerModel(config(max_position_embeddings=36, projected_dim=9, num_hidden_layers=1))
    (projection,) = model.encoder.projections
    seen = []
    projection.register_forward_hook(trials._mask_unreached, with_kwargs=True)
    projection.register_forward_hook(lambda _, inputs, slots: seen.append(slots[0].empty))
    ids = torch.randint(5, 101, (2, 11))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    model(ids, mask), model(ids)
    reached = [[row for row, slot in enumerate(spread_order(9)) if slot * 4 < length] for length in (6, 11)]
    assert [(~row).nonzero().flatten().tolist() for row in seen[0]] == reached
    assert [(~row).nonzero().flatten().tolist() for row in seen[1]] == reached[1:]
    assert list(map(len, reached)) == [2, 3]


@pytest.mark.parametrize("path", sorted((RECIPES / "learning").glob("[a-z]*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_whole(path, tmp_path):
    """Each parses, and every training of it could start; the header says what one must know."""
    settings = parse(["bench", "learning", "--recipe", path.stem, "--english_file", str(tmp_path)])[1]
    learning._check(settings)
    header = path.read_text().split("\ntitle:")[0]
    for word in (path.stem, "Paper:", "Hardware:", "Time:", f"linformer bench learning --recipe {path.stem}"):
        assert word in header
