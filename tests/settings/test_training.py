"""Values of settings are checked where a settings object is made, by the limits at the fields."""

from __future__ import annotations

import dataclasses
import re

import pytest

from linformer_cli.parser import parse
from linformer_kit import InputError

NEEDED = {"pretrain": [], "finetune": ["m", "--train_file", "t.csv"], "distill": ["teacher"]}


def settings(command: str, **fields: object):
    return dataclasses.replace(parse([command, *NEEDED[command]])[1], **fields)


@pytest.mark.parametrize(
    ("command", "name", "value", "expected"),
    [
        ("distill", "max_steps", 0, "greater than or equal to 1"),
        ("pretrain", "learning_rate", float("nan"), "a finite number"),
        ("finetune", "seed", 2**32, "less than or equal to 4294967295"),
        ("pretrain", "adam_beta1", 1.0, "less than 1"),
        ("finetune", "dataloader_num_workers", 1_000_000, "less than or equal to 256"),
        ("finetune", "learning_rate", True, "a number"),
        ("distill", "projected_dim", [[3, False]], "a number"),
        ("pretrain", "dtype", "bf16", "'auto', 'float32', 'bfloat16' or 'float16'"),
        ("distill", "sharing", "all", "'none', 'headwise', 'key_value' or 'layerwise'"),
    ],
)
def test_values_out_of_range(command, name, value, expected):
    with pytest.raises(InputError, match=f"^{re.escape(f'{name}: expected {expected}, got {value}')}$"):
        settings(command, **{name: value})
