"""Commands on an accelerator: a pretraining that is killed and goes on, the other trainings, a row of a benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.runs import (
    assert_equal,
    distill_command,
    environment,
    finetune_command,
    launch,
    pretrain_command,
    run_all,
)

DETERMINISTIC = """
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
torch.use_deterministic_algorithms(True)
from linformer_cli.cli import main
main()
"""
COMMAND = [sys.executable, "-c", DETERMINISTIC]
UPDATES = 20


@pytest.fixture
def options(device) -> dict[str, str]:
    return {"device": "cpu"} if device.type == "cpu" else {}


def kill_after(command: list[str], checkpoint: Path) -> None:
    """Start, and kill as soon as a checkpoint is there."""
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not checkpoint.is_dir():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.e2e
def test_a_pretraining_that_is_killed_ends_as_one_that_is_not(device, options, corpus, tmp_path):
    """Bit for bit, with kernels that sum in a fixed order, mixed precision where the device has it, and dropout."""
    options |= {"max_steps": UPDATES, "dtype": "auto", "eval_steps": 10}
    whole, killed = ([*COMMAND, *pretrain_command(corpus, tmp_path / name, **options)] for name in ("whole", "killed"))
    result = launch(whole)
    assert result.returncode == 0, result.stderr
    kill_after(killed, tmp_path / "killed" / "checkpoint-7")
    assert not (tmp_path / "killed" / f"checkpoint-{UPDATES}").exists()
    result = launch([*killed, "--resume"])
    assert result.returncode == 0, result.stderr
    last = [tmp_path / name / f"checkpoint-{UPDATES}" for name in ("killed", "whole")]
    assert_equal(*last)
    log = json.loads((last[0] / "trainer_state.json").read_text())["log_history"]
    assert all(entry["memory_mib"] > 1 for entry in log if "memory_mib" in entry)
    assert f'"device_type": "{device.type}"' in (tmp_path / "whole" / "run.json").read_text()


@pytest.mark.e2e
def test_the_other_trainings(device, options, encoder, teacher, texts, corpus, tmp_path):
    options |= {"max_steps": 4, "dtype": "auto"}
    run_all([
        finetune_command(encoder, texts, tmp_path / "classifier", **options),
        distill_command(teacher, corpus, tmp_path / "student", **options | {"layerwise_steps": 2}),
        ["predict", str(tmp_path / "classifier"), str(texts), "--out", str(tmp_path / "answers.jsonl")],
        ["fill-mask", str(tmp_path / "student"), "def <mask>"],
    ])  # fmt: skip
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 24
