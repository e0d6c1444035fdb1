"""Folders of trainings are never lost by accident, and only whole checkpoints are resumed from."""

from __future__ import annotations

import re
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


def test_a_folder_with_a_run_is_rejected(tmp_path):
    checkpoint(tmp_path, 5)
    (tmp_path / "run.json").write_text("{}")
    message = f"expected a folder without a run, but {tmp_path} holds one; continue it with --resume or remove it with"
    with pytest.raises(InputError, match=re.escape(message)):
        check_output_dir(str(tmp_path), resume=False, overwrite=False)
    check_output_dir(str(tmp_path), resume=True, overwrite=False)
    check_output_dir(str(tmp_path), resume=False, overwrite=True)
    assert (tmp_path / "run.json").exists(), "checking removes nothing"


def run_with_files(folder, *names):
    """A run of which the manifest lists these files."""
    for name in ("run.json", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    write_manifest(folder)


def test_overwrite_removes_all_of_the_old_run_and_nothing_else(tmp_path):
    """What sentence-transformers reads beside it too, wherever it stands, and nothing that is not in its manifest."""
    checkpoint(tmp_path, 5)
    for name in ("metrics.json", "runs/date_host/events.out.tfevents.1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    run_with_files(
        tmp_path, "modules.json", "1_Pooling/config.json", "2_Dense/deep/model.safetensors", "adapter_config.json"
    )
    (tmp_path / "elsewhere").mkdir()
    for name in ("notes.txt", "1_Pooling/notes.txt", "elsewhere/config.json"):
        (tmp_path / name).write_text("mine")
    check_output_dir(str(tmp_path), resume=False, overwrite=True)
    open_output_dir(str(tmp_path), command="distill", overwrite=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "1_Pooling/notes.txt", "elsewhere/config.json"}
    assert not any((tmp_path / name).exists() for name in ("2_Dense", "runs", "checkpoint-5"))


@pytest.mark.parametrize("spoil", [lambda text: text[:-1], lambda text: text.replace("b.txt", "../b")])
def test_a_spoilt_manifest_removes_nothing(spoil, tmp_path):
    run_with_files(tmp_path / "run", "b.txt")
    (tmp_path / "b").write_text("mine")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(spoil(manifest.read_text()))
    open_output_dir(str(tmp_path / "run"), command="distill", overwrite=True)
    assert (tmp_path / "run" / "b.txt").exists() and (tmp_path / "b").exists()


def test_what_a_manifest_lists_behind_a_link_stays(tmp_path):
    run_with_files(tmp_path / "run", "1_Pooling/config.json")
    (tmp_path / "run" / "1_Pooling").rename(tmp_path / "mine")
    (tmp_path / "run" / "1_Pooling").symlink_to(tmp_path / "mine")
    open_output_dir(str(tmp_path / "run"), command="distill", overwrite=True)
    assert (tmp_path / "mine" / "config.json").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [("model.safetensors", "a model but no run.json"), ("modules.json", "modules.json")],
)  # fmt: skip
def test_a_model_of_others_is_not_overwritten(name, what, tmp_path):
    """Nor what libraries would load with the new model, also beside a run of ours."""
    (tmp_path / name).write_text("")
    message = (
        f"output_dir: expected a folder without a model from outside linformer-kit, got {tmp_path}, which has {what}"
    )
    for overwrite in (False, True):
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            check_output_dir(str(tmp_path), resume=False, overwrite=overwrite)
    run_with_files(tmp_path / "run", "tokenizer.json")
    (tmp_path / "run" / "modules.json").write_text("{}")
    check_output_dir(str(tmp_path / "run"), resume=True, overwrite=False)
    with pytest.raises(InputError, match=r"which has modules\.json$"):
        check_output_dir(str(tmp_path / "run"), resume=False, overwrite=True)


def test_the_default_folder_is_a_new_one_each_time(tmp_path, monkeypatch):
    """A taken name gets a number."""
    assert [new_folder(tmp_path / "runs", "a").name for _ in range(3)] == ["a", "a-2", "a-3"]
    monkeypatch.chdir(tmp_path)
    folders = {open_output_dir(None, command="pretrain", overwrite=False) for _ in range(3)}
    assert len(folders) == 3 and all(folder.parent == Path("runs") and folder.is_dir() for folder in folders)
