"""The trainings of a study: their settings and names, and what an update of them costs."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest
import torch

from linformer_kit.experiments.learning import running, trials
from linformer_kit.experiments.measure import in_fresh_process
from linformer_kit.settings.study import LearningSettings
from linformer_kit.training.loop import Training
from tests.experiments.learning.studies import study

pytestmark = pytest.mark.e2e


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
