"""Values of settings are checked where a settings object is made, by the limits at the fields."""

from __future__ import annotations

import dataclasses
import re

import pytest

from linformer_cli.parser import parse
from linformer_kit import InputError

NEEDED = {"pretrain": [], "finetune": ["--model", "m", "--train_file", "t.csv"], "distill": ["teacher", "student"]}


def settings(command: str, **fields: object):
    return dataclasses.replace(parse([command, *NEEDED[command]])[1], **fields)


@pytest.mark.parametrize(
    ("command", "name", "value", "expected"),
    [
        ("pretrain", "save_total_limit", 0, "greater than or equal to 1"),
        ("distill", "max_steps", 0, "greater than or equal to 1"),
        ("pretrain", "warmup_steps", -1, "greater than or equal to 0"),
        ("pretrain", "learning_rate", float("nan"), "a finite number"),
        ("pretrain", "seed", 2**32, "less than or equal to 4294967295"),
        ("finetune", "seed", 2**32, "less than or equal to 4294967295"),
        ("pretrain", "adam_beta1", 1.0, "less than 1"),
        ("pretrain", "adam_epsilon", 0.0, "greater than 0"),
        ("pretrain", "mlm_probability", 1.0, "less than 1"),
        ("pretrain", "ddp_timeout", 2**31, "less than or equal to 2147483647"),
        ("distill", "sharing", "all", "'none', 'headwise', 'key_value' or 'layerwise'"),
        ("distill", "sliding_window", -1, "greater than or equal to 0"),
    ],
)
def test_values_out_of_range(command, name, value, expected):
    got = value[-1] if isinstance(value, list) else value
    with pytest.raises(InputError, match=f"^{re.escape(f'{name}: expected {expected}, got {got}')}$"):
        settings(command, **{name: value})


def test_one_precision_at_most():
    with pytest.raises(InputError, match=r"^bf16, fp16: expected at most one of them, got both$"):
        settings("pretrain", bf16="true", fp16=True)
    settings("pretrain", bf16="auto", fp16=True)


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("lr_scheduler_type", {"pretrain", "finetune"}),
        ("load_best_model_at_end", {"pretrain"}),
        ("mlm_probability", {"pretrain", "distill"}),
    ],
)
def test_commands_have_only_settings_that_they_support(name, commands):
    assert {command for command in NEEDED if hasattr(settings(command), name)} == commands
