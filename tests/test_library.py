"""Importing this package and calling its functions changes no global state of the process."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linformer_cli.settings import DistillSettings, FinetuneSettings, ModelSettings, PretrainSettings
from linformer_kit.training import distill, finetune, pretrain, process
from tests.conftest import PRETRAIN_SIZES, write_corpus, write_model, write_teacher
from tests.process_state import changed, process_state

IMPORTS = """
import importlib, pkgutil, sys
import sentence_transformers  # hides a warning of torch in this process
from tests.process_state import changed, matplotlib, process_state
matplotlib.use("svg")
before = process_state()
import linformer_kit
for module in pkgutil.walk_packages(linformer_kit.__path__, "linformer_kit."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of an extra
        if error.name.partition(".")[0] not in ("onnx", "onnxruntime", "onnxscript", "openvino"):
            raise
from linformer_kit.report.figures import new_figure, save_figure
figure, axes = new_figure((2, 2))
axes.imshow([[0, 1]])
save_figure(figure, sys.argv[1])
print(changed(before), matplotlib.get_backend(), "matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.slow
def test_imports_and_figures_change_nothing(tmp_path):
    """Neither settings nor generators, nor matplotlib's backend; and pyplot, which has a state of its own, is not loaded."""
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "drawn.png")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[] svg False\n"
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def trainings(folder: Path, *, max_steps: int = 2, **changes: Any) -> dict[str, tuple[Callable, Any]]:
    """Each kind of training, by name, and its settings."""
    corpus, texts = folder / "corpus", folder / "texts.csv"
    corpus.mkdir()
    write_corpus(corpus)
    texts.write_text("text,label\n" + "".join(f"number {n},{n % 2}\n" for n in range(24)))
    usual = {"report_to": "none", "dtype": "float32", "max_steps": max_steps, "logging_steps": 1}
    usual |= {"per_device_train_batch_size": 2, "learning_rate": 1e-3, "warmup_steps": 1, "eval_steps": 1, **changes}
    often = {"save_steps": 1, **usual}
    usual.pop("save_steps", None)  # checkpoints of finetune are at evaluations
    encoder, teacher = write_model(folder / "encoder", "number 0 1 2"), write_teacher(folder / "teacher", "def a first")
    few = {
        "projected_dim": 5,
        "projection": "linear",
        "sliding_window": 3,
        "max_eval_samples": 3,
        "validation_fraction": 0.2,
    }
    kinds = {
        "pretrain": (PretrainSettings, {"model": ModelSettings(**PRETRAIN_SIZES), "train_file": [str(corpus)]} | often),
        "finetune": (FinetuneSettings, {"model": str(encoder), "train_file": [str(texts)]} | usual),
        "distill": (DistillSettings, {"model": str(teacher), "train_file": [str(corpus)]} | few | often),
    }
    functions = {"pretrain": pretrain.pretrain, "finetune": finetune.finetune, "distill": distill.distill}
    return {
        name: (functions[name], settings(output_dir=str(folder / name), **given))
        for name, (settings, given) in kinds.items()
    }


@pytest.mark.e2e
def test_trainings_change_nothing(drawn, tmp_path, monkeypatch):
    """Signals, generators, threads, loggers, malloc: the next lines of the program go on as if nothing had been."""
    monkeypatch.setattr(process, "ctypes", None)  # telling the C library anything would fail
    for train, settings in trainings(tmp_path).values():
        random.seed(3), np.random.seed(5), torch.manual_seed(7)
        before = process_state()
        train(settings)
        assert changed(before) == [], train.__name__
