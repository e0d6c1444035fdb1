"""Several processes train as one does on the same batches; if one of them dies, the others end too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from linformer_kit import LinformerForMaskedLM
from linformer_kit.data.tokenizer import load_tokenizer
from linformer_kit.files.folders import find_checkpoint
from tests.faults.runs import cut_off, distill_command, environment, finetune_command, pretrain_command, run_all
from tests.processes import free_port, rank_environment

pytestmark = pytest.mark.e2e

# Adam divides a gradient by itself. Where the exact gradient is zero (the key bias, if all rows of E have one sum), only
# rounding is left, whose order of sums depends on the processes and on the processor; divided by itself it is as large
# as any other update. With this epsilon, far above rounding, an update is a smooth function of the gradient.
SMOOTH = {"config": Path(__file__).with_name("smooth.yaml")}  # of settings that are no options
# Batches of four, one by one or two by two.
OPTIONS: dict[str, Any] = {**SMOOTH, "logging_steps": 1}
PRETRAIN = {"save_steps": 3, "model.sharing": "layerwise", "activation_checkpointing": "true"}
PRETRAIN |= {"model.hidden_dropout_prob": 0.0}
ACCUMULATED = {"gradient_accumulation_steps": 2, "model.local_convolution": 3}
DISTILL = {"save_steps": 3, "learning_rate": 1e-2}
SHARDED = {"fully_shard": "true"}


@pytest.fixture(scope="module")
def folders(corpus, encoder, texts, teacher, tmp_path_factory) -> dict[int, Path]:
    """The same trainings in one process and in two, and, in two, with a model in pieces."""
    still = encoder.parent / "still"  # the encoder without dropout
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    LinformerForMaskedLM.from_pretrained(encoder, **quiet).save_pretrained(still)
    load_tokenizer(str(encoder), max_length=23).save_pretrained(still)
    # At its default, a tenth, E would hardly learn in so few updates.
    rate = {"learning_rate": 1e-2, "projection_learning_rate_factor": 1, "eval_steps": 3}
    folders = {}
    for processes in (1, 2):
        folder = folders[processes] = tmp_path_factory.mktemp(f"processes-{processes}")
        batch = OPTIONS | {"per_device_train_batch_size": 4 // processes}
        commands = [
            pretrain_command(corpus, folder / "whole", **batch, **PRETRAIN),
            pretrain_command(corpus, folder / "accumulated", **batch, **PRETRAIN, **ACCUMULATED),
            finetune_command(still, texts, folder / "finetune", **batch, **rate),
            distill_command(teacher, corpus, folder / "distill", **batch, **DISTILL),
        ]
        if processes == 1:  # one by one
            parts = batch | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
            commands.append(distill_command(teacher, corpus, folder / "distilled in parts", **parts, **DISTILL))
        if processes == 2:
            commands.append(pretrain_command(corpus, folder / "pieces", **batch, **PRETRAIN, **SHARDED))
        run_all(commands, processes)
    return folders


def last(folder: Path) -> Path:
    (checkpoint,) = folder.rglob("checkpoint-12")
    return checkpoint


@pytest.mark.parametrize("name", ["whole", "accumulated", "finetune", "distill"])
def test_two_processes_learn_what_one_learns(folders, name):
    """Parameters and losses to rounding, which the order of the sums changes; as many checkpoints, by one writer."""
    check_equal(*(last(folders[processes] / name) for processes in (1, 2)))


def test_distillation_in_parts_learns_what_it_learns_at_once(folders):
    """By spreads that are measured once: each part of an update has one text of another number of tokens."""
    check_equal(*(last(folders[1] / name) for name in ("distill", "distilled in parts")))


def test_a_model_in_pieces_learns_what_a_whole_one_learns(folders):
    check_equal(*(last(folders[2] / name) for name in ("whole", "pieces")))


def check_equal(one: Path, two: Path) -> None:
    """Check that two trainings made the same checkpoints and logs, and equal parameters."""
    first, ours, theirs = (load_file(path / "model.safetensors") for path in (one.with_name("checkpoint-3"), two, one))
    for key, tensor in theirs.items():
        assert (tensor - first[key]).abs().max() > 2e-5 or key.endswith(("k_proj.bias", "key.bias")), (
            f"{key} has not learned"
        )
        torch.testing.assert_close(ours[key], tensor, rtol=1e-5, atol=1e-6, msg=lambda said, key=key: f"{key}: {said}")
    histories = [json.loads((path / "trainer_state.json").read_text())["log_history"] for path in (two, one)]
    for logged in ("loss", "eval_loss", "grad_norm"):
        found, expected = ([entry[logged] for entry in history if logged in entry] for history in histories)
        assert len(expected) >= 4 and found == pytest.approx(expected, rel=1e-5), logged
    names = [
        sorted(path.relative_to(last_one.parent).as_posix() for path in last_one.parent.rglob("*"))
        for last_one in (one, two)
    ]
    assert [name for name in names[0] if "checkpoint" in name] == [name for name in names[1] if "checkpoint" in name]


@pytest.mark.parametrize(("before", "name", "after"), [(2, "pieces", 1), (1, "whole", 2)])
def test_a_run_may_go_on_in_another_number_of_processes(folders, corpus, tmp_path, before, name, after):
    """Whole or in pieces. What is drawn differs from then on, so here nothing is."""
    copy = cut_off(folders[before] / name, tmp_path / "copy", 6)
    options = OPTIONS | PRETRAIN | {"per_device_train_batch_size": 4 // after} | (SHARDED if after > 1 else {})
    run_all([[*pretrain_command(corpus, copy, **options), "--resume"]], after)
    ours, theirs = (load_file(last(folder) / "model.safetensors") for folder in (copy, folders[2] / "whole"))
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key], tensor, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_when_a_rank_dies_the_others_end_and_the_run_goes_on(corpus, tmp_path, number):
    """Without torchrun, which would end them: they find out themselves, at the latest after the time-out."""
    options = {
        "max_steps": 400,
        "save_steps": 2,
        "eval_steps": 400,
        "save_total_limit": 3,
        "config": tmp_path / "timeout.yaml",
    }
    (tmp_path / "timeout.yaml").write_text("ddp_timeout: 20\n")
    folder = tmp_path / "out"
    command = pretrain_command(corpus, folder, per_device_train_batch_size=1, **options)
    port = free_port()
    with (tmp_path / "log.txt").open("w") as log:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "linformer_kit", *command],
                env=environment() | rank_environment(rank, 2, port),
                stdout=log,
                stderr=log,
            )
            for rank in range(2)
        ]
        deadline = time.monotonic() + 120
        while not list(folder.glob("checkpoint-*")):
            assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks), (
                tmp_path / "log.txt"
            ).read_text()
            time.sleep(0.05)
        os.kill(ranks[1].pid, number)
        assert ranks[0].wait(timeout=60) not in (0, None), "an error, and no waiting for ever"
        ranks[1].kill()
        ranks[1].wait()
    newest, _ = find_checkpoint(folder)
    assert newest is not None
    updates = int(newest.name.removeprefix("checkpoint-")) + 4
    again = pretrain_command(corpus, folder, per_device_train_batch_size=1, **(options | {"max_steps": updates}))
    run_all([[*again, "--resume"]], processes=2)
    assert find_checkpoint(folder)[0] == folder / f"checkpoint-{updates}"
