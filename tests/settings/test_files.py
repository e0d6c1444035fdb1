"""What results record of the settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from linformer_kit.settings import portable


@dataclasses.dataclass
class _Settings:
    model: str
    models: list[str]
    train_file: list[str]
    validation_file: str | None
    output_dir: str
    cache_dir: str
    base: dict[str, Any]
    cells: dict[str, Any]
    seed: int = 3


def test_results_record_no_path_of_this_machine(tmp_path):
    (tmp_path / "run").mkdir()
    here = str(tmp_path / "run")
    settings = _Settings(
        model=here,
        models=[here, "hub/id"],
        train_file=[f"{here}/*.txt"],
        validation_file=None,
        output_dir=here,
        cache_dir=here,
        base={"data_dir": here, "cache_dir": here},
        cells={"one": {"text_file": [f"{here}/b.txt"], "model": {"sharing": "none"}}},
    )
    assert portable(settings) == {
        "model": "run",
        "models": ["run", "hub/id"],
        "train_file": ["*.txt"],
        "validation_file": None,
        "base": {"data_dir": "run"},
        "cells": {"one": {"text_file": ["b.txt"], "model": {"sharing": "none"}}},
        "seed": 3,
    }
    assert portable(settings, without=("model", "seed")).keys().isdisjoint({"model", "seed"})
