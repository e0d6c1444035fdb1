"""Output folders are never lost by accident, and only whole checkpoints are resumed from."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from linformer_kit import InputError
from linformer_kit.errors import MachineError, OutOfMemoryError, machine_failure
from linformer_kit.files.manifest import read_json, write_manifest
from linformer_kit.files.runs import check_output_dir, holds_run, newest_whole_checkpoint, open_output_dir
from linformer_kit.files.writing import uninterrupted, whole_folder, write_whole
from linformer_kit.training.checkpoint import save_model


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.ones(3)}, path / "model.safetensors")
    for name in ("config.json", "trainer_state.json"):
        (path / name).write_text("{}")
    write_manifest(path)
    return path


def test_newest_is_by_number_and_not_by_name(tmp_path):
    for step in (9, 10, 100):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_whole_checkpoint(tmp_path).name == "checkpoint-100"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "trainer_state.json", "manifest.json"])
def test_a_checkpoint_that_lacks_a_file_is_passed_over(tmp_path, name):
    older, newer = checkpoint(tmp_path, 5), checkpoint(tmp_path, 7)
    (newer / name).unlink()
    assert newest_whole_checkpoint(tmp_path) == older


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "trainer_state.json", "manifest.json"])
def test_a_truncated_checkpoint_is_passed_over(tmp_path, name):
    newer = checkpoint(tmp_path, 7)
    (newer / name).write_bytes((newer / name).read_bytes()[:-1])
    assert newest_whole_checkpoint(tmp_path) is None


def test_no_folder_holds_no_checkpoint(tmp_path):
    assert newest_whole_checkpoint(tmp_path / "none") is None


def test_a_folder_with_a_run_is_refused(tmp_path):
    checkpoint(tmp_path, 5)
    (tmp_path / "run.json").write_text("{}")
    message = f"expected a folder without a run, but {tmp_path} holds one; continue it with --resume or remove it with"
    with pytest.raises(InputError, match=re.escape(message)):
        check_output_dir(str(tmp_path), resume=False, overwrite=False)
    check_output_dir(str(tmp_path), resume=True, overwrite=False)
    check_output_dir(str(tmp_path), resume=False, overwrite=True)
    assert holds_run(tmp_path), "checking removes nothing"


@pytest.mark.parametrize("output_dir", ["runs", "runs/below/it", "link", None])
def test_a_file_is_refused(output_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"^output_dir: expected a folder, got the file (runs|link)$"):
        check_output_dir(output_dir, resume=False, overwrite=False)


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    """The tests may run as root, who may write everywhere: the answer of the system is the only thing not real here."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    message = f"output_dir: expected a folder to write to, got {tmp_path}, which may not be written to"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_output_dir(str(tmp_path / "new" / "one"), resume=False, overwrite=False)


def test_overwrite_removes_the_run_and_nothing_else(tmp_path):
    checkpoint(tmp_path, 5)
    checkpoint(tmp_path / "full", 5)
    for name in ("metrics.json", "runs/date_host/events.out.tfevents.1", "full/model.safetensors", "full/twin.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    open_output_dir(str(tmp_path), command="pretrain", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def run_with_files(folder, *names):
    """A run of which the manifest lists these files."""
    for name in ("run.json", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    write_manifest(folder)


def test_overwrite_removes_all_that_belongs_to_the_old_model(tmp_path):
    """What sentence-transformers reads beside it too, wherever it stands, and nothing that is not in its manifest."""
    run_with_files(
        tmp_path, "modules.json", "1_Pooling/config.json", "2_Dense/deep/model.safetensors", "adapter_config.json"
    )
    (tmp_path / "1_Pooling" / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text("mine")
    check_output_dir(str(tmp_path), resume=False, overwrite=True)
    open_output_dir(str(tmp_path), command="distill", overwrite=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"1_Pooling/notes.txt", "elsewhere/config.json"}
    assert not (tmp_path / "2_Dense").exists()


@pytest.mark.parametrize("name", ["modules.json", "sentence_bert_config.json", "adapter_config.json"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_files_of_another_model_are_refused(name, overwrite, tmp_path):
    """They are not ours to remove, and a new model would be loaded with them."""
    if overwrite:
        run_with_files(tmp_path, "tokenizer.json")
    (tmp_path / name).write_text("{}")
    said = "output_dir: expected no files of another model, which would be loaded with the new one, got"
    message = f"{said} {tmp_path / name}: move or delete it"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_output_dir(str(tmp_path), resume=False, overwrite=overwrite)
    check_output_dir(str(tmp_path), resume=True, overwrite=False) if overwrite else None


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


def test_overwrite_keeps_runs_and_files_that_stand_where_a_run_writes(tmp_path):
    kept = {"runs/pretrain-1/model.safetensors", "runs/pretrain-1/runs/x/events.out.tfevents.1", "full/notes.txt"}
    for name in (*kept, "run.json", "full/config.json", "full/twin.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    open_output_dir(str(tmp_path), command="pretrain", overwrite=True)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_runs_of_others_below_do_not_make_a_run(tmp_path):
    (tmp_path / "runs" / "pretrain-1").mkdir(parents=True)
    assert not holds_run(tmp_path)


def test_overwrite_keeps_what_stands_in_the_place_of_a_twin(tmp_path):
    """Files of a model, and even a run of its own, that somebody put there."""
    for name in ("run.json", "full/config.json", "full/model.safetensors", "full/run.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    open_output_dir(str(tmp_path), command="pretrain", overwrite=True)
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "config.json", "model.safetensors", "run.json"}
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(("place", "mark"), [(".", "run.json"), ("full", "twin.json")])
def test_a_model_of_others_is_neither_resumed_nor_overwritten(place, mark, options, tmp_path):
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text("")
    options = {"resume": False, "overwrite": False, "twin": True, **options}
    message = f"output_dir: expected no model that is not ours, but {folder} holds one without {mark}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_output_dir(str(tmp_path), **options)
    if place == "full":
        check_output_dir(str(tmp_path), **{**options, "twin": False})


@pytest.mark.parametrize(
    ("error", "kind", "got"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), MachineError, "No space left on device"),
        (RuntimeError("I/O error: full (os error 28)"), MachineError, "I/O error: full (os error 28)"),
        (MemoryError(), OutOfMemoryError, "memory ran out"),
        (ValueError("odd"), InputError, "odd"),
    ],
)
def test_a_model_that_cannot_be_saved_says_whose_fault_it_is(error, kind, got, tmp_path):
    """On the command line, 1 for the machine's and 2 for that of the input."""
    model, tokenizer = Mock(), Mock()
    model.save_pretrained.side_effect = error
    message = f"{tmp_path}: expected to be able to write the model, got: {got}; checkpoints are as they were"
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as raised:
        save_model(model, tokenizer, tmp_path)
    assert machine_failure(raised.value) == (None if kind is InputError else message)


def test_a_text_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_whole(path, "old")
    monkeypatch.setattr(Path, "write_text", lambda path, *_, **__: path.write_bytes(b"ne") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["run.json"]


def test_a_text_that_the_disk_has_no_space_for_names_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError) as raised:
        write_whole(tmp_path / "run.json", "new")
    assert machine_failure(raised.value) == f"{tmp_path / 'run.json'}: No space left on device"
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "expected JSON, got Expecting"), ("3", "expected JSON of names and values, got int"), ("[" * 10**5, "expected JSON, got maximum")],
)  # fmt: skip
def test_json_that_is_none_is_refused(content, message, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / 'run.json'))}: {message}"):
        read_json(tmp_path / "run.json")


def test_the_default_folder_is_a_new_one_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {open_output_dir(None, command="pretrain", overwrite=False) for _ in range(3)}
    assert len(folders) == 3 and all(folder.parent == Path("runs") and folder.is_dir() for folder in folders)


@pytest.mark.parametrize("form", ["new", "deep", "empty", "here", "link", "broken_link"])
def test_a_folder_is_written_whole(tmp_path, form, monkeypatch):
    target = tmp_path / "target"
    if form in ("empty", "here", "link"):
        target.mkdir()
    place = {"deep": tmp_path / "a" / "b", "here": Path(), "link": tmp_path / "l", "broken_link": tmp_path / "l"}
    folder = place.get(form, target)
    if "link" in form:
        folder.symlink_to(target)
    if form == "here":
        monkeypatch.chdir(target)
    with pytest.raises(KeyboardInterrupt), whole_folder(folder) as part:
        (part / "one").touch()
        raise KeyboardInterrupt
    assert not folder.exists() or not any(folder.iterdir())
    with whole_folder(folder) as part:
        (part / "one").touch()
        assert not (folder / "one").exists()
    assert [path.name for path in folder.iterdir()] == ["one"]
    assert not list(tmp_path.glob(".*"))


def test_ctrl_c_does_nothing_while_results_are_written():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background may ignore
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
