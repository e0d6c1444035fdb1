"""Output folders are never lost by accident, and only whole checkpoints are resumed from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from linformer_kit import InputError
from linformer_kit.training.checkpoint import check_output_dir, holds_run, newest_whole_checkpoint, open_output_dir


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.ones(3)}, path / "model.safetensors")
    for name in ("config.json", "trainer_state.json"):
        (path / name).write_text("{}")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": torch.ones(3)}, path / name)
    return path


def test_newest_is_by_number_and_not_by_name(tmp_path):
    for step in (9, 10, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_whole_checkpoint(tmp_path).name == "checkpoint-100"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json"]
)
def test_a_checkpoint_that_lacks_a_file_is_passed_over(tmp_path, name):
    older, newer = checkpoint(tmp_path, 5), checkpoint(tmp_path, 7)
    (newer / name).unlink()
    assert newest_whole_checkpoint(tmp_path) == older


@pytest.mark.parametrize(
    "name", ["model.safetensors", "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"]
)
def test_a_truncated_checkpoint_is_passed_over(tmp_path, name):
    newer = checkpoint(tmp_path, 7)
    (newer / name).write_bytes((newer / name).read_bytes()[:-1])
    assert newest_whole_checkpoint(tmp_path) is None


def test_no_folder_holds_no_checkpoint(tmp_path):
    assert newest_whole_checkpoint(tmp_path / "none") is None


def test_a_folder_with_a_run_is_refused(tmp_path):
    checkpoint(tmp_path, 5)
    message = f"expected a folder without a run, but {tmp_path} holds one; continue it with --resume or remove it with"
    with pytest.raises(InputError, match=re.escape(message)):
        check_output_dir(str(tmp_path), resume=False, overwrite=False)
    check_output_dir(str(tmp_path), resume=True, overwrite=False)
    (tmp_path / "run.json").write_text("{}")
    check_output_dir(str(tmp_path), resume=False, overwrite=True)
    assert holds_run(tmp_path), "checking removes nothing"


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="output_dir: expected a folder, got the file"):
        check_output_dir(str(tmp_path / "file"), resume=False, overwrite=False)


def test_overwrite_removes_the_run_and_nothing_else(tmp_path):
    checkpoint(tmp_path, 5)
    checkpoint(tmp_path / "full", 5)
    for name in ("metrics.json", "runs/date_host/events.out.tfevents.1", "full/model.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    open_output_dir(str(tmp_path), command="pretrain", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_overwrite_keeps_runs_and_files_that_stand_where_a_run_writes(tmp_path):
    kept = {"runs/pretrain-1/model.safetensors", "runs/pretrain-1/runs/x/events.out.tfevents.1", "full/notes.txt"}
    for name in (*kept, "run.json", "full/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    open_output_dir(str(tmp_path), command="pretrain", overwrite=True)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_runs_of_others_below_do_not_make_a_run(tmp_path):
    (tmp_path / "runs" / "pretrain-1").mkdir(parents=True)
    assert not holds_run(tmp_path)


def test_a_model_of_others_is_not_overwritten(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(InputError, match=r"overwrite: expected run\.json in"):
        check_output_dir(str(tmp_path), resume=False, overwrite=True)


def test_the_default_folder_is_a_new_one_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {open_output_dir(None, command="pretrain", overwrite=False) for _ in range(3)}
    assert len(folders) == 3 and all(folder.parent == Path("runs") and folder.is_dir() for folder in folders)
