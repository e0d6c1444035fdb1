"""Invalid numbers are rejected, by the name of the setting."""

from __future__ import annotations

import dataclasses
import re

import pytest

from linformer_kit import InputError
from linformer_kit.commands.parser import parse

NEEDED = {"pretrain": [], "finetune": ["--model", "m", "--train_file", "t.csv"], "distill": ["teacher", "student"]}


def settings(command: str, **fields: object):
    return dataclasses.replace(parse([command, *NEEDED[command]])[1], **fields)


COUNTS = ["max_steps", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "eval_steps", "save_steps", "logging_steps", "save_total_limit"]  # fmt: skip
AMOUNTS = ["learning_rate", "warmup_steps", "weight_decay", "projection_learning_rate_factor", "max_grad_norm", "dataloader_num_workers", "max_skipped_updates"]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name", "value", "expected"),
    [
        *(("pretrain", name, 0, "greater than or equal to 1") for name in COUNTS),
        *(("pretrain", name, -1, "greater than or equal to 0") for name in AMOUNTS),
        ("pretrain", "learning_rate", float("nan"), "greater than or equal to 0"),
        ("finetune", "early_stopping_patience", 0, "greater than or equal to 1"),
        ("finetune", "num_train_epochs", -1.0, "greater than or equal to 0"),
        ("distill", "max_steps", 0, "greater than or equal to 1"),
        ("pretrain", "seed", 2**32, "less than or equal to 4294967295"),
        ("pretrain", "seed", -1, "greater than or equal to 0"),
        ("pretrain", "split_seed", -1, "greater than or equal to 0"),
        ("pretrain", "adam_beta1", 1.0, "less than 1"),
        ("pretrain", "adam_beta2", -0.1, "greater than or equal to 0"),
        ("finetune", "label_smoothing_factor", 1.0, "less than 1"),
        ("pretrain", "adam_epsilon", 0.0, "greater than 0"),
        ("pretrain", "ddp_timeout", 0, "greater than or equal to 1"),
        ("pretrain", "ddp_timeout", 2**31, "less than or equal to 2147483647"),
    ],
)
def test_numbers_that_no_training_can_have(command, name, value, expected):
    with pytest.raises(InputError, match=f"^{re.escape(f'{name}: expected {expected}, got {value}')}$"):
        settings(command, **{name: value})


def test_every_seed_is_looked_at():
    with pytest.raises(InputError, match=r"^seeds: expected less than or equal to 4294967295, got 4294967296$"):
        settings("finetune", seeds=[1, 2**32])


def test_one_precision_at_most():
    with pytest.raises(InputError, match=r"^bf16, fp16: expected at most one of them, got both$"):
        settings("pretrain", bf16="true", fp16=True)
    settings("pretrain", bf16="auto", fp16=True)


@pytest.mark.e2e
def test_who_has_which_settings():
    """Commands have only settings that they support."""
    has = {name: {command for command in NEEDED if hasattr(settings(command), name)} for name in
           ("lr_scheduler_type", "label_smoothing_factor", "load_best_model_at_end", "fp16", "adam_beta2", "max_skipped_updates", "trainer", "skip_bad_batches")}  # fmt: skip
    assert has == {
        "lr_scheduler_type": {"pretrain", "finetune"},
        "label_smoothing_factor": {"finetune"},
        "load_best_model_at_end": {"pretrain"},
        "fp16": set(NEEDED),
        "adam_beta2": set(NEEDED),
        "max_skipped_updates": set(NEEDED),
        "trainer": set(),
        "skip_bad_batches": set(),
    }
