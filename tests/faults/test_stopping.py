"""Ctrl-C and SIGTERM: a checkpoint within one update, the exit code of the signal, and a resume that is exact."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linformer_cli.cli import main
from linformer_cli.errors import Stopped
from linformer_kit.files import stopping
from linformer_kit.files.folders import find_checkpoint
from linformer_kit.files.stopping import ignore_signals, stop_requests
from linformer_kit.training.run import Run
from tests.faults.runs import UPDATES, assert_equal, environment, finetune_command, launched, pretrain_command, run_all

pytestmark = pytest.mark.e2e

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture
def stopped(monkeypatch, capsys):
    """Run a command that gets a signal in the given call of a method of the loop; return its error."""

    def run(command: list[str], number: signal.Signals, method: str, call: int) -> str:
        calls = 0
        real = getattr(Run, method)

        def signalled(self, *arguments, **named):
            nonlocal calls
            calls += 1
            if calls == call:
                signal.raise_signal(number)
            return real(self, *arguments, **named)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background may ignore
        capsys.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
            patch.setattr(Run, method, signalled)
            main(command)
        assert exit_.value.code == CODES[number]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "handlers are as they were"
        signal.signal(signal.SIGINT, before)
        return capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("number", "method", "call", "update"),
    [
        (signal.SIGINT, "_update", 5, 5),  # within an update
        (signal.SIGTERM, "_evaluate", 3, 6),  # before an evaluation, which is made when the run goes on
    ],
)
def test_pretraining_stops_and_goes_on_exactly(corpus, tmp_path, stopped, number, method, call, update):
    run_all([pretrain_command(corpus, tmp_path / "whole")])
    command = pretrain_command(corpus, tmp_path / "stopped")
    newest = tmp_path / "stopped" / f"checkpoint-{update}"
    said = stopped(command, number, method, call)
    assert said == f"linformer: stopped after update {update}; --resume goes on from {newest}"
    assert find_checkpoint(tmp_path / "stopped") == (newest, [])
    run_all([[*command, "--resume"]])
    assert_equal(tmp_path / "stopped" / f"checkpoint-{UPDATES}", tmp_path / "whole" / f"checkpoint-{UPDATES}")
    model = "model.safetensors"
    assert (tmp_path / "stopped" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_stopped_at_the_very_end_it_makes_no_more_updates(encoder, texts, tmp_path, stopped):
    """While the best one is loaded."""
    command = finetune_command(encoder, texts, tmp_path / "out")
    stopped(command, signal.SIGTERM, "_load_best", 1)
    assert not (tmp_path / "out" / "metrics.json").exists()
    run_all([[*command, "--resume"]])
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["updates"] == UPDATES


def test_a_second_ctrl_c_ends_at_once_and_what_a_launcher_passes_on_does_not(monkeypatch):
    now = 10.0
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_requests() as received:
            signal.raise_signal(signal.SIGINT)
            assert received == [signal.SIGINT]
            now += 0.5
            signal.raise_signal(signal.SIGINT)
            now += 10
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_ignored_stays_ignored_and_a_stop_travels():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_requests() as received:
            signal.raise_signal(signal.SIGINT)
            assert not received and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    stopped = pickle.loads(pickle.dumps(Stopped("stopped after update 3", signal=signal.SIGTERM)))
    assert str(stopped) == "stopped after update 3" and stopped.exit_code == 143


def test_a_data_worker_leaves_signals_to_the_process_that_it_works_for():
    pid = os.fork()
    if pid == 0:
        ignore_signals(0)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize(
    ("number", "processes"),
    [
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
    ],
)
def test_from_outside(corpus, tmp_path, number, processes):
    """Either reaches a whole group of processes, data workers too; torchrun hands SIGTERM on to its own."""
    folder = tmp_path / "out"
    command = pretrain_command(
        corpus, folder, max_steps=5000, save_steps=5000, eval_steps=5000, dataloader_num_workers=2
    )
    run = [sys.executable, "-m", "linformer_kit", *command]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            launched(run, processes),
            env=environment(),
            stderr=log,
            stdout=log,
            start_new_session=processes == 1,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's background may ignore
        )
        wait_for("update/s, loss", tmp_path / "log.txt")
        os.killpg(process.pid, number) if processes == 1 else process.send_signal(number)
        code = process.wait(timeout=60)
    said = (tmp_path / "log.txt").read_text()
    assert code == (CODES[number] if processes == 1 else 1), said[-2000:]
    newest, wrong = find_checkpoint(folder)
    assert newest is not None and not wrong and f"--resume goes on from {newest}" in said
    assert processes == 2 or "Traceback" not in said, "and torchrun prints its own"


STUCK = """
import multiprocessing, signal, time
from linformer_kit.training.process import start_processes

def hang():
    signal.signal(signal.SIGTERM, lambda *_: None)
    time.sleep(1000)

start_processes("cpu", timeout=10)
multiprocessing.get_context("fork").Process(target=hang, daemon=True).start()
time.sleep(1)
"""


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_keep_the_process():
    subprocess.run([sys.executable, "-c", STUCK], env=environment(), check=True, timeout=60)


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)
