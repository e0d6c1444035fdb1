"""A full disk loses no data; a resumed run names the damaged checkpoint that it skips."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from linformer_kit.files.folders import find_checkpoint
from linformer_kit.training import run as training_run
from tests.conftest import fail_last_line
from tests.faults.runs import pretrain_command, run_all

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    run_all([pretrain_command(corpus, folder, max_steps=2)])
    return folder


def test_a_save_that_fails_loses_nothing(corpus, run, tmp_path, capsys, monkeypatch):
    """Simulates a full disk: a limit on the size of files below the size of the moments."""
    limit = (run / "checkpoint-2" / "optimizer.safetensors").stat().st_size // 2
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    write = training_run.save_checkpoint

    def write_limited(folder: Path, *arguments: Any) -> None:
        if folder.name == "checkpoint-4":
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
        try:
            write(folder, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    monkeypatch.setattr(training_run, "save_checkpoint", write_limited)
    folder = tmp_path / "out"
    command = pretrain_command(corpus, folder, max_steps=6, save_steps=2)
    error = fail_last_line(capsys, *command, code=1)
    assert f"{folder / 'checkpoint-4'}: could not be written: " in error
    assert "File too large" in error
    assert "nothing incomplete is left of it, and older checkpoints are as they were" in error
    assert find_checkpoint(folder) == (folder / "checkpoint-2", [])
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")], "no debris"
    monkeypatch.undo()
    run_all([[*command, "--resume"]])
    assert find_checkpoint(folder)[0] == folder / "checkpoint-6"


def test_resume_says_what_it_skips(corpus, run, tmp_path, caplog):
    folder = tmp_path / "out"
    shutil.copytree(run, folder)
    path = folder / "checkpoint-2" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    half = folder / ".checkpoint-9.part"
    half.mkdir()
    (half / "model.safetensors").touch()
    caplog.set_level("INFO", logger="linformer_kit")
    run_all([[*pretrain_command(corpus, folder, max_steps=3), "--resume"]])
    assert f"resume: skipped a damaged checkpoint: {path}: expected SHA-256" in caplog.text
    assert f"resuming from {folder / 'checkpoint-1'}" in caplog.text
    assert not half.exists(), "what a killed process left is cleared up"
