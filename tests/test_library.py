"""Importing this package and calling its functions changes no global state of the process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

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


def trainings(folder: Path) -> dict:
    """Each kind of training, for two updates."""
    corpus, texts = folder / "corpus", folder / "texts.csv"
    corpus.mkdir()
    write_corpus(corpus)
    texts.write_text("text,label\n" + "".join(f"number {n},{n % 2}\n" for n in range(24)))
    usual = {"report_to": "none", "dtype": "float32", "max_steps": 2, "logging_steps": 1}
    usual |= {"per_device_train_batch_size": 2, "learning_rate": 1e-3}
    often = {"warmup_steps": 1, "eval_steps": 1, "save_steps": 1}
    sizes, encoder = ModelSettings(**PRETRAIN_SIZES), str(write_model(folder / "encoder", "number 0 1 2"))
    named = {"train_file": [str(corpus)], "projected_dim": 5, "max_eval_samples": 3, "validation_fraction": 0.2}
    teacher = str(write_teacher(folder / "teacher", "def function return a"))
    outputs = {name: str(folder / name) for name in ("pretrain", "finetune", "distill")}
    return {
        pretrain.pretrain: PretrainSettings(
            model=sizes, train_file=[str(corpus)], output_dir=outputs["pretrain"], **usual, **often
        ),
        finetune.finetune: FinetuneSettings(
            model=encoder, train_file=[str(texts)], output_dir=outputs["finetune"], **usual
        ),
        distill.distill: DistillSettings(model=teacher, output_dir=outputs["distill"], **named, **usual, **often),
    }


@pytest.mark.e2e
def test_trainings_change_nothing(drawn, tmp_path, monkeypatch):
    """Signals, generators, threads, loggers, malloc: the next lines of the program go on as if nothing had been."""
    monkeypatch.setattr(process, "ctypes", None)  # telling the C library anything would fail
    for train, settings in trainings(tmp_path).items():
        random.seed(3), np.random.seed(5), torch.manual_seed(7)
        before = process_state()
        train(settings)
        assert changed(before) == [], train.__name__
