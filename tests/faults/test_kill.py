"""A run killed at any moment, in particular while saving, resumes and ends with the same result."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from linformer_kit.files.folders import find_checkpoint
from tests.faults.runs import assert_equal, pretrain_command, run_all

pytestmark = pytest.mark.e2e

# A process that has imported all that the others need, of which each is a copy.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.prepared"])
OPTIONS = {"eval_steps": 20, "logging_steps": 3, "save_total_limit": 3}


def train(command: list[str], log: Path) -> None:
    """A training in a separate process, without output."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1), os.dup2(descriptor, 2)
    run_all([command])


def kill_while_training(command: list[str], folder: Path, log: Path, draw: random.Random) -> bool:
    """Start, kill after a time, or soon after a checkpoint begins to be written; returns whether it was being written."""
    _, before = find_checkpoint(folder)
    assert not before, "every checkpoint that has its name is whole"
    known = {path.name for path in folder.glob("checkpoint-*")}
    process = PROCESSES.Process(target=train, args=(command, log))
    process.start()
    deadline = time.monotonic() + 120
    while not {path.name for path in folder.glob("checkpoint-*")} - known:  # it has gone on, and can be killed
        assert process.is_alive() and time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.002)
    while draw.random() < 0.99 and not list(folder.glob(".checkpoint-*.part")) and process.is_alive():
        time.sleep(0.0005)
    time.sleep(draw.random() * 0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return bool(list(folder.glob(".checkpoint-*.part")))


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_goes_on(corpus, tmp_path, kills):
    updates = 8 + 6 * kills
    run_all([pretrain_command(corpus, tmp_path / "whole", max_steps=updates, **OPTIONS)])
    command = [*pretrain_command(corpus, tmp_path / "killed", max_steps=updates, **OPTIONS), "--resume"]
    draw = random.Random(kills)
    while_saving = 0
    for _ in range(kills):
        while_saving += kill_while_training(command, tmp_path / "killed", tmp_path / "log.txt", draw)
    assert while_saving >= kills // 4, "else this is not about saving"
    run_all([command])
    assert_equal(tmp_path / "killed" / f"checkpoint-{updates}", tmp_path / "whole" / f"checkpoint-{updates}")
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert not list((tmp_path / "killed").glob(".*")), "nothing half written is left"
