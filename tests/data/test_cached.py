"""Files of the cache: complete or absent, made once, made again if damaged; a full disk is reported."""

from __future__ import annotations

import errno
import os
import re
import resource
import time
from unittest.mock import Mock

import pyarrow
import pytest

from linformer_kit import InputError
from linformer_kit.data import cached
from linformer_kit.data.cached import cached_dataset

SCHEMA = pyarrow.schema({"input_ids": pyarrow.list_(pyarrow.int32())})
ROWS = [[number] * (number % 7) for number in range(31)]


def batches():
    for start in range(0, len(ROWS), 5):
        yield pyarrow.record_batch([pyarrow.array(ROWS[start : start + 5], SCHEMA.field(0).type)], SCHEMA)


def not_again():
    pytest.fail("made a second time")


def test_a_file_is_made_once_and_mapped(tmp_path):
    path = tmp_path / "new" / "a.arrow"
    for make in (batches, not_again):
        found = cached_dataset(path, SCHEMA, make, rows=len(ROWS))
        assert found["input_ids"][:] == ROWS and found.cache_files == [{"filename": str(path)}]
    assert os.listdir(path.parent) == [path.name]


def test_a_damaged_file_is_made_again(tmp_path):
    """Also one truncated between two batches, which could be read as a shorter file."""
    path = tmp_path / "a.arrow"
    cached_dataset(path, SCHEMA, batches)
    whole = path.read_bytes()
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, SCHEMA) as writer:
        writer.write_batch(next(batches()))
    shorter = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * len(whole), shorter):
        path.write_bytes(damaged)
        assert cached_dataset(path, SCHEMA, batches, rows=len(ROWS))["input_ids"][:] == ROWS


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_not_be_written_to_is_a_setting_to_change(tmp_path, monkeypatch, number):
    folder, reason = tmp_path / "labelled", os.strerror(number)
    monkeypatch.setattr(cached.Path, "mkdir", Mock(side_effect=OSError(number, reason, str(folder))))
    message = f"cache_dir: expected a folder to write to, got {folder} ({reason}); give another one with --cache_dir"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        cached_dataset(folder / "a.arrow", SCHEMA, not_again)


def test_what_a_killed_process_left_is_removed_once_it_has_not_grown_for_a_day(tmp_path):
    for name, age in (("writing-killed", 25), ("writing-alive", 23), ("other", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.arrow").write_bytes(b"half")
        then = time.time() - age * 3600
        for path in (tmp_path / name / "b.arrow", tmp_path / name):
            os.utime(path, (then, then))
    cached_dataset(tmp_path / "a.arrow", SCHEMA, batches)
    assert sorted(os.listdir(tmp_path)) == ["a.arrow", "other", "writing-alive"]


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path):
    """Simulated by a limit on the size of files: the same call fails."""
    path, before = tmp_path / "a.arrow", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        with pytest.raises(OSError) as raised:
            cached_dataset(path, SCHEMA, batches)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(path) and raised.value.strerror == "File too large"
    assert os.listdir(tmp_path) == []
