"""Small trainings that differ only in their arguments."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import default_collate

from linformer_cli.settings import OneModelTrainingSettings
from linformer_kit import LinformerForMaskedLM
from linformer_kit.data.packing import BlockMasker, MaskedBlocks
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.pretrain import MaskedLanguageModel
from linformer_kit.training.run import Run
from linformer_kit.training.state import Plan, learning_rate_schedule

SEQ_LEN, TRAIN, VALIDATION = 23, 19, 7
_PLAN = {field.name for field in dataclasses.fields(Plan)}


def small_settings(**fields: object) -> OneModelTrainingSettings:
    """Settings of float32 trainings without trackers."""
    usual = {"per_device_train_batch_size": 4, "learning_rate": 1e-2}
    usual |= {"report_to": "none", "dtype": "float32", "logging_steps": 1, "save_total_limit": None}
    return OneModelTrainingSettings(**{**usual, **fields})


def small_plan(updates: int = 7, **fields: object) -> Plan:
    """A plan with checkpoints after every third update."""
    schedule = learning_rate_schedule("linear", updates=updates, warmup_steps=0)
    usual = {"schedule": schedule, "seed": 5, "evaluate_every": 3, "save_every": 3}
    return Plan(updates=updates, **{**usual, **fields})


def blocks(tokenizer, count: int, seed: int) -> MaskedBlocks:
    """Masked blocks of random tokens."""
    ids = np.random.default_rng(seed).integers(5, len(tokenizer), size=(count, SEQ_LEN), dtype=np.int32)
    return MaskedBlocks(Dataset.from_dict({"input_ids": list(ids)}), BlockMasker(tokenizer, seed=3, probability=0.3))


def begun(task, folder: Path, plan: Plan, *, checkpoint: Path | None = None, **fields: object) -> Run:
    """A run with checkpoints in a folder, without a record and a lock."""
    made = Run("pretrain", small_settings(**fields))
    made.folder = folder
    made.begin(task, plan, checkpoint=checkpoint)
    return made


def losses(training: Run) -> list[float]:
    """Losses of the updates in the log."""
    return list(training.state.logged("loss").values())


def same_parameters(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether they are equal bit for bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.fixture(scope="session")
def words():
    return train_tokenizer(["def one(): return two\n"] * 3, vocab_size=269, max_length=SEQ_LEN)


@pytest.fixture
def masked(config, words):
    """A factory of tasks: dropout unless `fields` says otherwise."""

    def make(fields: dict[str, object] | None = None, **arguments: object) -> MaskedLanguageModel:
        torch.manual_seed(1)
        sizes = {"max_position_embeddings": SEQ_LEN, "vocab_size": len(words), "hidden_dropout_prob": 0.1}
        return MaskedLanguageModel(
            LinformerForMaskedLM(config(**{**sizes, **(fields or {})})),
            words,
            train=blocks(words, TRAIN, seed=0),
            validation=blocks(words, VALIDATION, seed=1),
            collate=default_collate,
            seed=5,
            **arguments,
        )

    return make


@pytest.fixture
def build(masked, tmp_path):
    """A factory of trainings from fields of the plan, of the settings, and `fields` of the model."""

    def make(
        folder: str = "run",
        *,
        task=None,
        checkpoint: Path | None = None,
        fields=None,
        **more: object,
    ) -> Run:
        planned = {name: more.pop(name) for name in list(more) if name in _PLAN}
        task = masked(fields) if task is None else task
        return begun(task, tmp_path / folder, small_plan(**planned), checkpoint=checkpoint, **more)

    return make


@pytest.fixture
def run(build):
    """The same, trained to the end."""

    def make(*names: str, **arguments: object) -> Run:
        training = build(*names, **arguments)
        training.loop()
        return training

    return make


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """Files of sentences, for distillation."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(11):
        sentences = [f"number {number} was {('good', 'bad')[line % 2]} {line}." for line in range(13)]
        (folder / f"{number}.txt").write_text(" ".join(sentences))
    return folder


def after_updates(training: Run, call) -> Run:
    """The training, with a call after each update."""
    update = training._update
    training._update = lambda data: (update(data), call())
    return training
