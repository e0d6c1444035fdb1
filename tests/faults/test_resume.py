"""A resumed run equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from linformer_cli.cli import main
from tests.conftest import fail_last_line
from tests.export.conftest import linformer
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

MATRIX = list(itertools.product(("pretrain", "finetune", "distill"), ("float32", "bfloat16"), (1, 4), (0, 2)))


@pytest.fixture
def command(corpus, encoder, texts, teacher):
    """A factory of commands that train the same in any number of processes."""

    def build(case: tuple[str, str, int, int], folder: Path, processes: int = 1, **more: Any) -> list[str]:
        task, dtype, accumulation, workers = case
        options = {"dtype": dtype, "gradient_accumulation_steps": accumulation, "dataloader_num_workers": workers}
        options |= {"per_device_train_batch_size": max(1, BATCH // processes)} | more
        if task == "pretrain":
            return pretrain_command(corpus, folder, **options)
        if task == "distill":
            return distill_command(teacher, corpus, folder, **options)
        return finetune_command(encoder, texts, folder, **options)

    return build


def name(case: tuple[str, str, int, int]) -> str:
    return "-".join(map(str, case))


def check(command, cases, tmp_path: Path, processes: int, cuts: tuple[bool, ...] = (False, True)) -> None:
    """Each case, with options of its own, whole and from checkpoints on: within an epoch, and at the end of one."""
    named = {f"{number}-{name(case)}": (case, options) for number, (case, options) in enumerate(cases)}
    run_all([command(case, tmp_path / key, processes, **options) for key, (case, options) in named.items()], processes)
    resumed = []
    for (key, (case, options)), at_end in itertools.product(named.items(), cuts):
        whole = tmp_path / key
        copy = cut_off(whole, tmp_path / f"{key}-{at_end}", place(whole, at_end=at_end))
        resumed.append([*command(case, copy, processes, **options), "--resume"])
    run_all(resumed, processes)
    for key, at_end in itertools.product(named, cuts):
        assert_equal(*(tmp_path / folder / f"checkpoint-{UPDATES}" for folder in (f"{key}-{at_end}", key)))


SHARDED = {"fully_shard": "true"}


def test_resumed_equals_uninterrupted(command, tmp_path):
    """Other tests resume fine-tuning and texts without workers."""
    cases = [
        (("pretrain", "bfloat16", 4, 2), {}),
        (("distill", "float32", 1, 0), {}),
    ]
    check(command, cases, tmp_path, processes=1, cuts=(False,))


@pytest.mark.parametrize("changed", ["tokenizer", "model"])
@pytest.mark.parametrize("task", ["finetune", "distill", "predict"])
def test_a_run_is_not_resumed_with_another(changed, task, corpus, encoder, texts, teacher, tmp_path, capsys):
    """With the same weights: a word that is another token, another configuration."""
    model, out = tmp_path / "model", tmp_path / "out"
    if task == "predict":
        linformer("LinformerForSequenceClassification", model)
        command, expected = ["predict", model, texts, "--out", out], f"resume: expected {changed}_fingerprint as in"
    else:
        shutil.copytree(encoder if task == "finetune" else teacher, model)
        make = {"finetune": (finetune_command, texts), "distill": (distill_command, corpus)}[task]
        command = make[0](model, make[1], out, max_steps=1, **({"layerwise_steps": 1} if task == "distill" else {}))
        named = "teacher" if (task, changed) == ("distill", "model") else changed
        expected = f"resume: expected the content that the run in {out} began with, got other {named}"
    main([*map(str, command)])
    if changed == "model":
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    else:
        content = json.loads((model / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        first, second = [*vocabulary][-2:]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        (model / "tokenizer.json").write_text(json.dumps(content))
    assert expected in fail_last_line(capsys, *command, "--resume")


@pytest.mark.slow
def test_in_two_processes_too(command, tmp_path):
    """A model in pieces."""
    cases = [(("pretrain", "bfloat16", 2, 0), SHARDED)]
    check(command, cases, tmp_path, processes=2, cuts=(False,))


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "options"), [(1, {}), (2, {}), (2, SHARDED)])
def test_in_all_cases(command, processes, options, tmp_path):
    check(command, [(case, options) for case in MATRIX], tmp_path, processes)
