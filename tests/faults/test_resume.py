"""A resumed run equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import (
    BATCH,
    UPDATES,
    assert_equal,
    cut_off,
    distill_command,
    finetune_command,
    place,
    pretrain_command,
    run_all,
)

pytestmark = pytest.mark.e2e

MATRIX = list(itertools.product(("pretrain", "finetune", "distill"), ("false", "true"), (1, 4), (0, 2)))
# Every pair of settings in some case.
QUICK = [
    ("pretrain", "false", 1, 0),
    ("pretrain", "true", 4, 2),
    ("finetune", "false", 4, 2),
    ("finetune", "true", 1, 2),
    ("finetune", "true", 4, 0),
    ("distill", "false", 4, 0),
    ("distill", "true", 1, 2),
]


@pytest.fixture
def command(corpus, encoder, texts, teacher):
    """A factory of commands that train the same in any number of processes."""

    def build(case: tuple[str, str, int, int], folder: Path, processes: int = 1, **more: Any) -> list[str]:
        task, bf16, accumulation, workers = case
        options = {"bf16": bf16, "gradient_accumulation_steps": accumulation, "dataloader_num_workers": workers}
        options |= {"per_device_train_batch_size": max(1, BATCH // processes)} | more
        if task == "pretrain":
            return pretrain_command(corpus, folder, **options)
        if task == "distill":
            return distill_command(teacher, corpus, folder, **options)
        return finetune_command(encoder, texts, folder, **options)

    return build


def name(case: tuple[str, str, int, int]) -> str:
    return "-".join(map(str, case))


def checkpoints(folder: Path) -> Path:
    return folder / "seed-0" if (folder / "seed-0").is_dir() else folder


def check(command, cases, tmp_path: Path, processes: int, **more: Any) -> None:
    """Each case whole, and from two of its checkpoints on."""
    run_all([command(case, tmp_path / name(case), processes, **more) for case in cases], processes)
    copies = [(case, at_end) for case in cases for at_end in (False, True)]
    resumed = []
    for case, at_end in copies:
        whole = tmp_path / name(case)
        copy = cut_off(whole, tmp_path / f"{name(case)}-{at_end}", place(whole, at_end=at_end))
        resumed.append([*command(case, copy, processes, **more), "--resume"])
    run_all(resumed, processes)
    for case, at_end in copies:
        whole, again = (checkpoints(tmp_path / folder) for folder in (name(case), f"{name(case)}-{at_end}"))
        assert_equal(again / f"checkpoint-{UPDATES}", whole / f"checkpoint-{UPDATES}")


@pytest.mark.parametrize("case", QUICK, ids=name)
def test_resumed_equals_uninterrupted(command, case, tmp_path):
    check(command, [case], tmp_path, processes=1)


@pytest.mark.parametrize(("processes", "workers"), [(1, 2), (2, 0)])
def test_streamed_text(command, processes, workers, tmp_path):
    """Within the second epoch."""
    case = ("pretrain", "false", 1, workers)
    check(command, [case], tmp_path, processes, streaming="true", validation_fraction=0.3)


def test_in_two_processes_too(command, tmp_path):
    """Within the second epoch."""
    check(command, [("pretrain", "false", 4, 0), ("distill", "false", 1, 0)], tmp_path, processes=2)


def test_in_pieces_too(command, tmp_path):
    check(command, [("pretrain", "true", 4, 2)], tmp_path, processes=2, fully_shard="true")


@pytest.mark.slow
def test_resumed_equals_uninterrupted_in_pieces(command, tmp_path):
    check(command, MATRIX, tmp_path, processes=2, fully_shard="true")


@pytest.mark.slow
def test_resumed_equals_uninterrupted_in_all_cases(command, tmp_path):
    check(command, MATRIX, tmp_path, processes=1)


@pytest.mark.slow
def test_resumed_equals_uninterrupted_in_two_processes(command, tmp_path):
    check(command, MATRIX, tmp_path, processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_streamed_text_in_all_cases(command, processes, tmp_path):
    cases = [case for case in MATRIX if case[0] == "pretrain"]
    check(command, cases, tmp_path, processes, streaming="true", validation_fraction=0.3)
