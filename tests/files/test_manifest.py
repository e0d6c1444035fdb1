"""Folders with the SHA-256 of every file: complete or absent."""

from __future__ import annotations

import json
import os
import re

import pytest

from linformer_kit.files import writing
from linformer_kit.files.folders import find_checkpoint, recover_checkpoints
from linformer_kit.files.manifest import damage, fingerprint, write_manifest
from linformer_kit.files.writing import whole_folder


def write(folder, content="whole"):
    with whole_folder(folder, replace=True) as part:
        (part / "below").mkdir()
        (part / "a.txt").write_text(content)
        (part / "below" / "b.txt").write_text("other")
        write_manifest(part)
        assert not folder.exists() or (folder / "a.txt").read_text() != content
    return folder


def test_a_whole_folder_has_nothing_wrong(tmp_path):
    folder = write(tmp_path / "checkpoint-1")
    (folder / "notes.txt").write_text("not listed")
    assert damage(folder) is None
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert {name: known["bytes"] for name, known in files.items()} == {"a.txt": 5, "below/b.txt": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "a.txt: expected a file, got none"),
        ("a.txt", "whol", "a.txt: expected 5 bytes, got 4"),
        ("below/b.txt", "0ther", "below/b.txt: expected SHA-256 d9298a10d1b0…, got "),
        ("manifest.json", None, "manifest.json: expected a manifest, got no such file"),
        ("manifest.json", "{", "manifest.json: expected JSON, got Expecting"),
        ("manifest.json", '{"files": {}, "sha256": ""}', "manifest.json: expected content that matches the SHA-256 in it, got other content"),
    ],
)  # fmt: skip
def test_damage_names_the_file(name, content, message, tmp_path):
    folder = write(tmp_path / "checkpoint-1")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    assert re.match(re.escape(f"{folder}/{message}"), damage(folder))
    assert (damage(folder, only="c.*") is None) == (name != "manifest.json")


def test_what_a_killed_process_leaves_is_finished_or_removed(tmp_path):
    """Half a folder, a link, and complete ones whose old version is partly removed, or intact."""
    write(tmp_path / "checkpoint-1", "kept")
    write(tmp_path / ".checkpoint-2.part", "new")
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / ".checkpoint-5.part").mkdir()
    (tmp_path / ".checkpoint-6.part").symlink_to(tmp_path / "checkpoint-1")
    write(tmp_path / "checkpoint-3", "kept")
    write(tmp_path / ".checkpoint-3.part", "new")
    for other in (".notes.part", ".checkpoint-4", ".checkpoint-x.part"):
        (tmp_path / other).mkdir()
    recover_checkpoints(tmp_path)
    contents = {"checkpoint-1": "kept", "checkpoint-2": "new", "checkpoint-3": "kept"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*contents, ".notes.part", ".checkpoint-4", ".checkpoint-x.part"}
    for name, content in contents.items():
        assert damage(tmp_path / name) is None and (tmp_path / name / "a.txt").read_text() == content


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["remove_tree", "replace"])
def test_a_checkpoint_rewritten_survives_an_error_at_any_step(tmp_path, monkeypatch, step, error):
    folder = write(tmp_path / "checkpoint-1", "first")
    real, module = (os.replace, os) if step == "replace" else (writing.remove_tree, writing)

    def fails(path, *others):
        if folder in (path, *others):
            raise error
        return real(path, *others)

    with monkeypatch.context() as patched, pytest.raises(error):
        patched.setattr(module, step, fails)
        write(folder, "second")
    recover_checkpoints(tmp_path)
    assert find_checkpoint(tmp_path) == (folder, []) and (folder / "a.txt").read_text() == "second"


def test_a_fingerprint_is_of_values_in_their_order_and_of_the_contents_of_files(tmp_path):
    first, copy, other = (tmp_path / name for name in ("first", "copy", "other"))
    for path, text in ((first, "x"), (copy, "x"), (other, "y")):
        path.write_text(text)
    assert fingerprint(1, ["a", first]) == fingerprint(1, ("a", copy)) != fingerprint(1, ["a", other])
    parts = [("ab",), ("a", "b"), ("b", "a"), (["a", "b"],), (iter("ab"),), (iter(()), iter("ab"))]
    assert len({fingerprint(*each) for each in parts}) == len(parts)
