"""Small studies, and pools that run their trainings in this process."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import yaml

from linformer_kit.commands.parser import parse
from linformer_kit.settings.study import LearningSettings
from tests.conftest import PRETRAIN_SIZES

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


def results_of(folder: Path) -> dict:
    return json.loads((folder / "learning.json").read_text())
