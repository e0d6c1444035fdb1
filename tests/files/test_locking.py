"""An output has one writer at a time, which its lock names, and a killed one releases it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest
from filelock import FileLock

from linformer_kit import InputError
from linformer_kit.files.locking import locked

# It holds a lock, and so does its copy, as a data worker is one; both print their process.
HOLDER = """
import os, pathlib, sys, time
from linformer_kit.files.locking import locked
with locked(pathlib.Path(sys.argv[1]), "out"):
    copy = os.fork()
    if copy:
        print(os.getpid(), copy, flush=True)
    time.sleep(600)
"""


@pytest.mark.e2e
def test_a_process_that_is_killed_releases_its_lock(tmp_path):
    """Though its copy, which has its open files, is alive; the error names the process, and writes nothing."""
    lock = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, lock], stdout=subprocess.PIPE, text=True) as holder:
        process, copy = map(int, holder.stdout.readline().split())
        before = lock.read_text()
        owner = f"process {process} on {socket.gethostname()}, which holds {lock}"
        for _ in range(2):
            with pytest.raises(InputError, match=f"^out: expected one run at a time, got another one, {owner}$"):
                locked(lock, "out").__enter__()
        assert lock.read_text() == before
        os.kill(process, signal.SIGKILL)
        holder.wait()
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
