"""The settings of a command as transformers' TrainingArguments, checked before anything is built."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from linformer_kit.errors import InputError, input_errors
from linformer_kit.settings import PretrainSettings

_AT_LEAST_ONE = (
    "max_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "eval_steps",
    "save_steps",
    "logging_steps",
)
_AT_LEAST_ZERO = ("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "dataloader_num_workers", "seed")
_OF_PROJECTIONS = ("projection_learning_rate_factor", "projection_weight_decay")
# Settings that TrainingArguments takes under the same name.
_SHARED = (*_AT_LEAST_ONE, *_AT_LEAST_ZERO, "save_total_limit", "activation_checkpointing", "report_to")
# What pretraining itself decides.
_FIXED: dict[str, Any] = {
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "eval_on_start": True,
    "remove_unused_columns": False,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
}
# What would take more than a field: a model split over devices, kernels of other models, a hub, checkpoints that no run
# goes on from, another way to measure.
_UNSUPPORTED = (
    "debug",
    "deepspeed",
    "fsdp",
    "fsdp_config",
    "include_for_metrics",
    "label_names",
    "liger_kernel_config",
    "parallelism_config",
    "prediction_loss_only",
    "push_to_hub",
    "save_only_model",
    "use_liger_kernel",
)


def training_arguments(settings: PretrainSettings, folder: Path) -> TrainingArguments:
    """Build TrainingArguments.

    Args:
        settings: The settings of the run.
        folder: Where checkpoints and logs go.

    Raises:
        InputError: for numbers out of range, and for names below `trainer` that are unknown, have a setting of
            their own or ask for what pretraining cannot do.
    """
    if settings.seed >= 2**32:
        raise InputError(f"seed: expected 0 to {2**32 - 1}, got {settings.seed}")
    for names, least in ((_AT_LEAST_ONE, 1), (_AT_LEAST_ZERO, 0), (_OF_PROJECTIONS, 0)):
        for name in names:
            value = getattr(settings, name)
            if value is not None and not value >= least:
                raise InputError(f"{name}: expected {least} or more, got {value}")
    _check_trainer_fields(settings.trainer)
    shared = {name: getattr(settings, name) for name in _SHARED}
    defaults = {"use_cpu": not torch.accelerator.is_available(), "dataloader_pin_memory": torch.cuda.is_available()}
    extra = defaults | settings.trainer
    bf16 = _use_bf16(settings, on_cpu=bool(extra["use_cpu"]))
    with input_errors("training"):
        arguments = TrainingArguments(output_dir=str(folder), bf16=bf16, **extra, **shared, **_FIXED)
    with input_errors("report_to"):
        for logger in get_reporting_integration_callbacks(arguments.report_to):
            logger()  # says whether its package is there
    return arguments


def _check_trainer_fields(fields: dict[str, Any]) -> None:
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InputError(f"trainer: expected fields of TrainingArguments by name, got {fields!r}")
    known = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    for name, value in fields.items():
        if name in _SHARED or name in ("bf16", "output_dir"):
            raise InputError(f"trainer.{name}: expected --{name}, which is a setting of its own")
        if name in _FIXED:
            raise InputError(f"trainer.{name}: expected another field, pretraining sets this one to {_FIXED[name]}")
        if name in _UNSUPPORTED:
            raise InputError(f"trainer.{name}: expected another field, pretraining does not support this one")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise InputError(f"trainer.{name}: expected a field of TrainingArguments, got an unknown one{hint}")
        if name == "metric_for_best_model" and value not in ("loss", "eval_loss"):
            raise InputError(f"trainer.{name}: expected loss, the one that is measured, got {value!r}")
        if isinstance(known[name], (int, float)) and not isinstance(value, (int, float)):
            raise InputError(f"trainer.{name}: expected {type(known[name]).__name__}, got {value!r}")


def _use_bf16(settings: PretrainSettings, *, on_cpu: bool) -> bool:
    if settings.bf16 != "auto":
        return settings.bf16 == "true"
    if settings.trainer.get("fp16"):
        return False
    if on_cpu:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
