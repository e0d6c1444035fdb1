"""Small trainings, in this or in several processes, and the comparison of two of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from linformer_cli.cli import main
from tests.conftest import PRETRAIN_SIZES
from tests.processes import run_processes

# Times in lines of the log, which always differ.
_TIMES = ("per_second", "seconds_left", "memory_mib")
UPDATES, BATCH = 12, 2


_USUAL = {"max_steps": UPDATES, "logging_steps": 5, "report_to": "none", "save_total_limit": "null", "dtype": "float32"}
_USUAL |= {"per_device_train_batch_size": BATCH}
_OFTEN = {"eval_steps": 3, "save_steps": 1, "warmup_steps": 2, "seed": 3}  # a checkpoint after every update


def pretrain_command(corpus: Path, folder: Path, **options: Any) -> list[str]:
    """A pretraining with dropout, and lines of the log that no checkpoint fits."""
    named = {"model.hidden_dropout_prob": 0.1}
    named |= {f"model.{name}": size for name, size in PRETRAIN_SIZES.items()}
    return _command("pretrain", _OFTEN | named | {"train_file": corpus, "output_dir": folder} | options)


def finetune_command(encoder: Path, texts: Path, folder: Path, **options: Any) -> list[str]:
    """A fine-tuning that is saved and measured after every update."""
    named = {"eval_steps": 1, "model": encoder, "train_file": texts, "validation_fraction": 0.2, "output_dir": folder}
    return _command("finetune", named | options)


def distill_command(teacher: Path, corpus: Path, folder: Path, **options: Any) -> list[str]:
    """A distillation that starts layer by layer."""
    named = {"projected_dim": 5, "layerwise_steps": 5, "max_eval_samples": 3, "validation_fraction": 0.2}
    named |= {"model": teacher, "train_file": corpus, "output_dir": folder}
    return _command("distill", _OFTEN | named | options)


def _command(name: str, options: dict[str, Any]) -> list[str]:
    return [name, *(f"--{option}={value}" for option, value in (_USUAL | options).items())]


def run_all(commands: list[list[str]], processes: int = 1) -> None:
    """Run commands one after the other, in this process or in several that start once."""
    if processes == 1:
        for command in commands:
            main(command)
        return
    run_processes(processes, _run_all, commands)


def _run_all(rank: int, commands: list[list[str]]) -> None:
    """Runs in each process."""
    run_all(commands)


def launch(command: list[str], processes: int = 1, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, under torchrun if it needs several processes."""
    return subprocess.run(
        launched(command, processes), env=environment(), capture_output=True, text=True, timeout=600, **options
    )


def launched(command: list[str], processes: int = 1) -> list[str]:
    """The torchrun command that starts it in several processes."""
    if processes == 1:
        return command
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*run, *command[1:]]


def environment() -> dict[str, str]:
    """Of a process beside others: offline, one thread."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def cut_off(run: Path, copy: Path, update: int) -> Path:
    """A copy of a run as it was just after the checkpoint of an update, without anything later."""
    shutil.copytree(run, copy)
    for name in ("metrics.json", "model.safetensors", "manifest.json"):
        (copy / name).unlink()
    for checkpoint in copy.rglob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > update:
            shutil.rmtree(checkpoint)
    return copy


def place(run: Path, *, at_end: bool) -> int:
    """The last update, before the end of the run, that ends an epoch or is within one; any update if there is none."""
    states = (json.loads(path.read_text()) for path in run.rglob("checkpoint-*/trainer_state.json"))
    updates = [
        state["global_step"]
        for state in sorted(states, key=lambda state: state["global_step"])
        if state["global_step"] < UPDATES and float(state["epoch"]).is_integer() == at_end
    ]
    return updates[-1] if updates else UPDATES - 2


def contents(checkpoint: Path) -> dict[str, Any]:
    """All that a checkpoint holds: bytes of weights and moments, the place in the data, and the log."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}
    assert {"model.safetensors", "optimizer.safetensors"} <= set(files)
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    log = [
        {name: value for name, value in entry.items() if not any(time in name for time in _TIMES)}
        for entry in state["log_history"]
    ]
    others = {name: value for name, value in state.items() if name not in ("log_history", "seconds")}
    return {**files, **others, "log": log}


def assert_equal(first: Path, second: Path) -> None:
    """Two checkpoints hold the same, bit for bit."""
    ours, theirs = contents(first), contents(second)
    assert ours["log"] == theirs["log"]
    differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    assert not differing, differing
