"""Errors of bad input and failures of the machine are distinct: the latter never become the former."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors import SafetensorError

from linformer_cli.cli import main
from linformer_cli.errors import PROCESS_KILLED, InputError, extra_errors, input_errors, machine_failure
from linformer_kit.training import finetune

SMALLER = "; smaller batches or shorter inputs need less"
OF_THE_MACHINE = [
    (MemoryError(), "memory ran out"),
    (torch.OutOfMemoryError("CUDA out of memory. GPU 0"), "memory ran out: CUDA out of memory. GPU 0"),
    (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), "memory ran out: CUBLAS_STATUS_ALLOC_FAILED"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out: [Errno 12] Cannot allocate memory"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), PROCESS_KILLED),
    (OSError(errno.ENOSPC, "No space left on device", "a.txt"), "a.txt: No space left on device"),
    (SafetensorError("I/O error: No space left (os error 28)"), "I/O error: No space left (os error 28)"),
]


@pytest.mark.parametrize(("error", "line"), OF_THE_MACHINE, ids=[line for _, line in OF_THE_MACHINE])
def test_what_the_machine_fails_at_is_not_bad_input(error, line):
    assert machine_failure(error) == line
    with pytest.raises(type(error)) as raised, input_errors("model: expected one, got none"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("size"), "config: KeyError: 'size'"),
        (RuntimeError("shapes do not fit"), "config: shapes do not fit"),
        (InputError("n: expected memory, got out of memory"), "config: n: expected memory, got out of memory"),
        (ValueError("(os error 28)"), "config: (os error 28)"),
    ],
)
def test_all_else_is(error, message):
    with pytest.raises(InputError) as raised, input_errors("config"):
        raise error
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("Could not import module 'a'."), ModuleNotFoundError("a bug", name="linformer_kit.a")],
    ids=str,
)
def test_no_extra_is_named_where_it_would_not_help(error):
    """An error of transformers, which names no package; a module of ours."""
    with pytest.raises(ModuleNotFoundError) as raised, extra_errors("commands"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), f"memory ran out: CUDA out of memory{SMALLER}"),
        (BrokenProcessPool("terminated abruptly"), f"{PROCESS_KILLED}{SMALLER}"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_a_command_says_it_in_one_line_and_exits_1(error, line, capsys, monkeypatch):
    monkeypatch.setattr(finetune, "main", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit, match="1"):
        main(["finetune", "m"])
    assert capsys.readouterr().err == f"linformer: error: {line}\n"


def test_our_own_errors_are_tracebacks(monkeypatch):
    monkeypatch.setattr(finetune, "main", mock.Mock(side_effect=RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        main(["finetune", "m"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
def test_output_that_cannot_be_written_is_one_line():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", "from linformer_cli.cli import main; main()", "fill-mask", "--help"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert result.stderr == "linformer: error: standard output: No space left on device\n"
    assert result.returncode == 1
