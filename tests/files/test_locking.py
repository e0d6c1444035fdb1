"""An output has one writer at a time, which its lock names, and a killed one releases it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from filelock import FileLock

from linformer_kit import InputError
from linformer_kit.files.folders import locked


def hold(lock: Path) -> tuple[int, int]:
    """A process that holds a lock, and its copy, as a data worker is one, which has its open files."""
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        with locked(lock, "out"):
            copy = os.fork()
            if copy:
                os.write(writer, str(copy).encode())
            time.sleep(600)
            os._exit(0)
    return holder, int(os.read(reader, 99))


def test_a_process_that_is_killed_releases_its_lock(tmp_path):
    """Though its copy is alive; the error names the process, and writes nothing."""
    lock = tmp_path / ".lock"
    holder, copy = hold(lock)
    before = lock.read_text()
    owner = f"process {holder} on {socket.gethostname()}, which holds {lock}"
    for _ in range(2):
        with pytest.raises(InputError, match=f"^out: expected one run at a time, got another one, {owner}$"):
            locked(lock, "out").__enter__()
    assert lock.read_text() == before
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert lock.exists() and not os.kill(copy, 0), "the copy is alive"
    with locked(lock, "out"):
        assert lock.read_text().split()[0] == str(os.getpid())
    os.kill(copy, signal.SIGKILL)
    assert not lock.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog, number):
    """It is written all the same, with a warning; that a folder is not writable is an error, with its path."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "acquire", fail)
    with locked(tmp_path / ".lock", "out"):
        pass
    assert f"{tmp_path}: the file system has no locks; start one run at a time there" in caplog.text
    number = errno.EROFS
    with pytest.raises(OSError, match=r"Read-only file system: .*\.lock"):
        locked(tmp_path / ".lock", "out").__enter__()
