"""Settings: values are checked by the limits at the fields, and results record no path of this machine."""

from __future__ import annotations

import dataclasses
import re

import pytest

from linformer_cli.parser import parse
from linformer_cli.settings import ModelSettings, PretrainSettings, without_local_paths
from linformer_cli.settings.declare import Folder, ModelName, Texts
from linformer_cli.settings.declare import settings as declared
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


@declared
class _Compared(PretrainSettings):
    models: Texts[list[ModelName]]
    """Folders or hub ids."""
    texts: Texts[list[Folder]]
    """Folders."""


def test_results_record_no_path_of_this_machine(tmp_path):
    """By the types of the settings."""
    here, model = str(tmp_path), ModelSettings(sharing="none")
    needed = dict.fromkeys(("max_steps", "warmup_steps", "eval_steps", "save_steps", "learning_rate"), 1)
    needed |= {"per_device_train_batch_size": 1, "model": model, "output_dir": here}
    named = {"models": [here, "hub/id"], "texts": [here], "from_model": here, "tokenizer": None}
    recorded = without_local_paths(_Compared(train_file=[f"{here}/*.txt"], **needed, **named))
    expected = {"train_file": ["*.txt"], "models": [tmp_path.name, "hub/id"], "texts": [tmp_path.name]}
    expected |= {"from_model": tmp_path.name, "tokenizer": None, "model": dataclasses.asdict(model)}
    assert {name: recorded[name] for name in expected} == expected
    assert "output_dir" not in recorded and here not in str(recorded)
