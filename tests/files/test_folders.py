"""Folders of trainings are never lost by accident, and only whole checkpoints are resumed from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from linformer_kit import InputError
from linformer_kit.files.folders import (
    check_output_dir,
    find_checkpoint,
    new_folder,
    open_output_dir,
    rotate_checkpoints,
)
from linformer_kit.files.manifest import write_manifest


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.ones(3)}, path / "model.safetensors")
    for name in ("config.json", "trainer_state.json"):
        (path / name).write_text("{}")
    write_manifest(path)
    return path


def test_the_newest_whole_one_and_what_is_wrong_with_newer_ones(tmp_path):
    for update in (9, 10, 11):  # by number, not by name
        checkpoint(tmp_path, update)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-11" / "config.json").unlink()
    (tmp_path / "checkpoint-10" / "manifest.json").unlink()
    found, wrong = find_checkpoint(tmp_path)
    assert found == tmp_path / "checkpoint-9"
    assert [line.partition(": ")[0] for line in wrong] == [
        str(tmp_path / "checkpoint-11" / "config.json"),
        str(tmp_path / "checkpoint-10" / "manifest.json"),
    ]


@pytest.mark.parametrize(
    ("limit", "keep", "staying"),
    [(None, None, {1, 2, 3, 4}), (2, None, {3, 4}), (1, 1, {1, 4})],
)  # fmt: skip
def test_rotation(limit, keep, staying, tmp_path):
    for update in (1, 2, 3, 4):
        checkpoint(tmp_path, update)
    rotate_checkpoints(tmp_path, limit, keep=keep)
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{update}" for update in staying}


def test_a_folder_that_is_not_empty_is_rejected(tmp_path):
    """Whatever it holds; with `resume` only that of a run goes on. Checking removes nothing."""
    for name in ("model/config.json", "run/run.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    expected = "output_dir: expected a new or empty folder, got"
    for resume in (False, True):
        with pytest.raises(InputError, match=f"^{expected} {tmp_path / 'model'}, which is not empty$"):
            check_output_dir(str(tmp_path / "model"), resume=resume)
    with pytest.raises(InputError, match=f"^{expected} {tmp_path / 'run'}, which holds a run; --resume continues it$"):
        check_output_dir(str(tmp_path / "run"), resume=False)
    for name in ("run", "new"):
        check_output_dir(str(tmp_path / name), resume=True)
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == ["config.json", "run.json"]


def test_the_default_folder_is_a_new_one_each_time(tmp_path, monkeypatch):
    """A taken name gets a number."""
    assert [new_folder(tmp_path / "runs", "a").name for _ in range(3)] == ["a", "a-2", "a-3"]
    monkeypatch.chdir(tmp_path)
    folders = {open_output_dir(None, command="pretrain") for _ in range(3)}
    assert len(folders) == 3 and all(folder.parent == Path("runs") and folder.is_dir() for folder in folders)
