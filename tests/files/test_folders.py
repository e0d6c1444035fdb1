"""Folders for results: rejected before the work if they are not writable."""

from __future__ import annotations

import os
import re

import pytest

from linformer_kit import InputError
from linformer_kit.files.folders import check_new_folder, check_writable, new_folder
from linformer_kit.files.runs import check_output_dir


@pytest.mark.parametrize("output_dir", ["runs", "runs/below/it", "link", None])
def test_a_file_is_rejected(output_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"^output_dir: expected a folder, got the file (runs|link)$"):
        check_output_dir(output_dir, resume=False, overwrite=False)


def test_a_folder_that_may_not_be_written_to_is_rejected(tmp_path, monkeypatch):
    """The system's answer is simulated, since tests may run as root, who may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    message = f"output_dir: expected a folder to write to, got {tmp_path}, which may not be written to"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_output_dir(str(tmp_path / "new" / "one"), resume=False, overwrite=False)


def test_a_new_folder_is_new_or_empty(tmp_path):
    assert check_new_folder("folder", str(tmp_path / "new")) == tmp_path / "new"
    assert check_new_folder("folder", str(tmp_path)) == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        message = f"folder: expected a new or empty folder, got {path}, which exists"
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            check_new_folder("folder", str(path))
    with pytest.raises(InputError, match=f"^folder: expected a folder, got the file {tmp_path / 'notes.txt'}$"):
        check_writable(tmp_path / "notes.txt" / "below", "folder")


def test_a_taken_name_gets_a_number(tmp_path):
    assert [new_folder(tmp_path / "runs", "a").name for _ in range(3)] == ["a", "a-2", "a-3"]
