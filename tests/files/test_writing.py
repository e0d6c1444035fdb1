"""Files and folders are complete or absent; folders for results are checked before the work."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from linformer_cli.errors import InputError, machine_failure
from linformer_cli.output_paths import check_new_folder
from linformer_kit.files.folders import check_output_dir, open_output_dir
from linformer_kit.files.writing import whole_file, whole_folder, write_whole


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
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: full (os error 28)")]
)
def test_a_folder_that_the_disk_has_no_space_for_is_named(error, tmp_path):
    with pytest.raises(OSError) as raised, whole_folder(tmp_path / "linear"):
        raise error
    assert machine_failure(raised.value) == f"{tmp_path / 'linear'}: No space left on device"
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("form", ["deep", "empty", "here", "link", "broken_link"])
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


def test_of_two_that_write_one_folder_one_does(tmp_path):
    existing, new = tmp_path / "existing", tmp_path / "new"
    message = "expected a new or empty folder, got one that another process has written to$"
    existing.mkdir()
    with whole_folder(existing) as part:
        with pytest.raises(InputError, match=message), whole_folder(existing):
            pass
        (part / "one").touch()
    with pytest.raises(InputError, match=message), whole_folder(new), whole_folder(new) as part:
        (part / "one").touch()
    for folder in (existing, new):
        with pytest.raises(InputError, match=message), whole_folder(folder):
            pass
        assert os.listdir(folder) == ["one"]
    assert sorted(os.listdir(tmp_path)) == ["existing", "new"]


def test_threads_of_one_process_do_not_share_a_temporary_file(tmp_path):
    """One begins and ends in the midst of another's writing."""
    path = tmp_path / "run.json"
    with whole_file(path) as slow:
        slow.write_text("slow")
        with ThreadPoolExecutor() as threads:
            threads.submit(write_whole, path, "quick").result()
        assert path.read_text() == "quick" and slow.read_text() == "slow"
    assert path.read_text() == "slow" and os.listdir(tmp_path) == ["run.json"]


# Folders for results: rejected before the work if they are not writable ------------------------------------------------


@pytest.mark.parametrize("output_dir", ["runs", "runs/below/it", "link", None])
def test_a_file_is_rejected(output_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    message = r"^output_dir: expected a folder, got the file (runs|link)$"
    with pytest.raises(InputError, match=message):
        check_output_dir(output_dir, resume=False)
    with pytest.raises(InputError, match=message):
        open_output_dir(output_dir, command="bench")


def test_a_folder_that_holds_only_a_lock_is_new(tmp_path):
    """Of a process that was killed before it wrote anything else."""
    (tmp_path / ".lock").touch()
    assert check_new_folder("folder", str(tmp_path)) == tmp_path
