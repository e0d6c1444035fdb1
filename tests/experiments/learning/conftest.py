"""The text of small studies, and studies whose trainings run in this process or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from linformer_kit.data.masked_text import load_text
from linformer_kit.experiments.learning import learn, running
from tests.conftest import write_corpus
from tests.experiments.learning.studies import InThisProcess, in_this_process


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("text"))
    (folder / "sentences.tsv").write_text("sentence\tlabel\n" + "first function and second\t1\n" * 3 + "no\t0\n")
    return folder


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
        fingerprint = load_text(trial.settings).fingerprint
        sizes = {"seq_len": 23, "vocab_size": 277, "train_sequences": 5, "validation_sequences": 3}
        corpus = {"fingerprint": fingerprint, **sizes}
        made = {"updates": updates, "validation_loss": 4.0, "curve": [[0, 5.0], [updates, 4.0]], "corpus": corpus}
        made |= {"unigram_entropy": 4.5, "parameters": 1301}
        return {**{name: getattr(trial, name) for name in said}, **made}

    monkeypatch.setattr(learn, "run_trial", run)
    return here
