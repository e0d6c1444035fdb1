"""Ctrl-C and SIGTERM: a checkpoint within one update, the exit code of the signal, and a resume that is exact."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linformer_kit.cli import main
from linformer_kit.errors import Stopped
from linformer_kit.training.checkpoint import find_checkpoint
from linformer_kit.training.stopping import stop_requests
from linformer_kit.training.upstream import ExactTrainer
from tests.faults.runs import UPDATES, assert_equal, environment, finetune_command, launched, pretrain_command, run_all

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture
def stopped(monkeypatch, capsys):
    """Runs a command that gets a signal in the so manyth call of a method of the trainer; returns what it says."""

    def run(command: list[str], number: signal.Signals, method: str, call: int) -> str:
        calls = 0
        real = getattr(ExactTrainer, method)

        def signalled(self, *arguments, **named):
            nonlocal calls
            calls += 1
            if calls == call:
                signal.raise_signal(number)
            return real(self, *arguments, **named)

        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background may ignore
        capsys.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
            patch.setattr(ExactTrainer, method, signalled)
            main(command)
        assert exit_.value.code == CODES[number]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "handlers are as they were"
        signal.signal(signal.SIGINT, before)
        return capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("number", "method", "call", "update"),
    [
        (signal.SIGTERM, "training_step", 5, 5),  # within an update
        (signal.SIGINT, "training_step", 6, 6),  # within the last one of an epoch, after which there is an evaluation
        (signal.SIGTERM, "evaluate", 3, 6),  # before an evaluation, which is made when the run goes on
        (signal.SIGTERM, "_save_checkpoint", 2, 3),
        (signal.SIGTERM, "training_step", UPDATES, UPDATES),  # within the very last one
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
    if update < UPDATES:  # the last evaluation is made again and not logged, as of every run that was finished
        assert_equal(tmp_path / "stopped" / f"checkpoint-{UPDATES}", tmp_path / "whole" / f"checkpoint-{UPDATES}")
    model = "model.safetensors"
    assert (tmp_path / "stopped" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


@pytest.mark.parametrize(
    ("method", "call", "update"),
    [("training_step", 5, 5), ("training_step", 10, 10), ("evaluate", 1, 10)],
)
def test_fine_tuning_by_epochs_stops_and_goes_on_exactly(encoder, texts, tmp_path, stopped, method, call, update):
    """Evaluations, and with them the best checkpoint, fall due at the end of an epoch, of ten updates."""
    options = {"eval_steps": "null", "max_steps": "null", "num_train_epochs": 2, "early_stopping_patience": 3}
    run_all([finetune_command(encoder, texts, tmp_path / "whole", **options)])
    command = finetune_command(encoder, texts, tmp_path / "stopped", **options)
    stopped(command, signal.SIGTERM, method, call)
    newest = tmp_path / "stopped" / "seed-0" / f"checkpoint-{update}"
    assert find_checkpoint(newest.parent) == (newest, [])
    run_all([[*command, "--resume"]])
    for last in (10, 20):
        ours, theirs = (tmp_path / name / "seed-0" / f"checkpoint-{last}" for name in ("stopped", "whole"))
        assert_equal(ours, theirs)


def test_a_second_signal_ends_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_requests() as request:
            signal.raise_signal(signal.SIGINT)
            assert request.signal == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_ignored_stays_ignored_and_a_stop_travels():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_requests() as request:
            signal.raise_signal(signal.SIGINT)
            assert request.signal == 0 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    stopped = pickle.loads(pickle.dumps(Stopped("stopped after update 3", signal=signal.SIGTERM)))
    assert str(stopped) == "stopped after update 3" and stopped.exit_code == 143


def test_a_data_worker_outlives_ctrl_c_and_ends_with_sigterm():
    with stop_requests():
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 143


@pytest.mark.parametrize(
    ("number", "processes"),
    [(signal.SIGINT, 1), pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow)],
)
def test_from_outside(corpus, tmp_path, number, processes):
    """Ctrl-C reaches all processes of a terminal, data workers too; torchrun hands SIGTERM on to its own."""
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


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)
