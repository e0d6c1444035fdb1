"""The settings of a command as transformers' TrainingArguments, checked before anything is built."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from linformer_kit.environment import use_bf16
from linformer_kit.errors import InputError, input_errors
from linformer_kit.settings import LARGEST_SEED, TrainingSettings
from linformer_kit.training.processes import start_processes

logger = logging.getLogger(__name__)

_AT_LEAST_ONE = (
    "max_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "eval_steps",
    "save_steps",
    "logging_steps",
    "save_total_limit",
    "early_stopping_patience",
)
_AT_LEAST_ZERO = (
    "learning_rate",
    "num_train_epochs",
    "warmup_steps",
    "weight_decay",
    "projection_learning_rate_factor",
    "projection_weight_decay",
    "max_grad_norm",
    "dataloader_num_workers",
    "skip_bad_batches",
    "seed",
)
# Fields of TrainingArguments under whose names a command has a setting of its own that is more than one.
_SPECIAL = ("output_dir", "bf16")
# What every training here decides.
_FIXED: dict[str, Any] = {
    "remove_unused_columns": False,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
}
# What would take more than a field: a model split over devices, kernels of other models, a hub, checkpoints that no run
# goes on from, another way to measure.
_UNSUPPORTED = (
    "batch_eval_metrics",
    "debug",
    "deepspeed",
    "eval_do_concat_batches",
    "include_for_metrics",
    "label_names",
    "liger_kernel_config",
    "parallelism_config",
    "prediction_loss_only",
    "push_to_hub",
    "save_on_each_node",
    "save_only_model",
    "use_liger_kernel",
)
# Models in pieces (`training.sharded`); without `fsdp` its configuration does nothing.
_FSDP = ("fsdp", "fsdp_config")


def training_arguments(settings: TrainingSettings, folder: Path, fixed: dict[str, Any]) -> TrainingArguments:
    """Build TrainingArguments.

    Args:
        settings: The settings of the run; a field that TrainingArguments has too counts unless it is None.
        folder: Where checkpoints and logs go.
        fixed: Fields of TrainingArguments that the command decides.

    Raises:
        InputError: for numbers out of range, and for names below `trainer` that are unknown, have a setting of
            their own or ask for what the command cannot do.
    """
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for seed in (values.get("seed", 0), *values.get("seeds", ())):
        if seed > LARGEST_SEED:
            raise InputError(f"seed: expected 0 to {LARGEST_SEED}, got {seed}")
    for names, least in ((_AT_LEAST_ONE, 1), (_AT_LEAST_ZERO, 0)):
        for name in names:
            value = values.get(name)
            if value is not None and not value >= least:
                raise InputError(f"{name}: expected {least} or more, got {value}")
    known = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    fixed = _FIXED | fixed
    _check_trainer_fields(settings.trainer, known, own=values, fixed=fixed)
    shared = {name: value for name, value in values.items() if name in known and name not in _SPECIAL}
    shared = {name: value for name, value in shared.items() if value is not None or name == "save_total_limit"}
    on_cpu = bool(settings.trainer.get("use_cpu", not torch.accelerator.is_available()))
    pinned = torch.cuda.is_available() and not on_cpu
    extra = {"dataloader_pin_memory": pinned, **settings.trainer, "use_cpu": on_cpu}
    timeout = extra.get("ddp_timeout", known["ddp_timeout"])
    if not 0 < timeout < 2**31:
        raise InputError(f"trainer.ddp_timeout: expected seconds, more than 0 and less than {2**31}, got {timeout}")
    if extra.get("ddp_backend") is not None and not torch.distributed.is_backend_available(str(extra["ddp_backend"])):
        raise InputError(f"trainer.ddp_backend: expected one of torch.distributed, got {extra['ddp_backend']!r}")
    with input_errors("training"):
        start_processes(cpu=on_cpu, backend=extra.get("ddp_backend"), timeout=timeout)
        arguments = TrainingArguments(
            output_dir=str(folder),
            bf16=use_bf16(settings.bf16, on_cpu=on_cpu, fp16=bool(extra.get("fp16"))),
            **extra,
            **shared | fixed,
        )
    _use_one_device(arguments)
    with input_errors("report_to"):
        for callback in get_reporting_integration_callbacks(arguments.report_to):
            callback()  # says whether its package is there
    return arguments


def _use_one_device(arguments: TrainingArguments) -> None:
    """One process, one GPU.

    With several in sight transformers would split batches over them by `nn.DataParallel`: a larger batch than was asked
    for, and dropout on the others that no checkpoint can take up again.
    """
    if arguments.n_gpu > 1:
        _say_unused(arguments.n_gpu)
        arguments._n_gpu = 1


@functools.cache
def _say_unused(devices: int) -> None:
    logger.warning("one of %s GPUs is used; `torchrun --nproc-per-node %s -m linformer_kit` uses all", devices, devices)


def _check_trainer_fields(
    fields: dict[str, Any], known: dict[str, Any], *, own: dict[str, Any], fixed: dict[str, Any]
) -> None:
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InputError(f"trainer: expected fields of TrainingArguments by name, got {fields!r}")
    for name, value in fields.items():
        if name in own and name in known:
            raise InputError(f"trainer.{name}: expected --{name}, which is a setting of its own")
        if name in fixed:
            raise InputError(f"trainer.{name}: expected another field, this command sets it to {fixed[name]}")
        if name in _FSDP:
            raise InputError(f"trainer.{name}: {_why_no_fsdp(fields)}")
        if name in _UNSUPPORTED:
            raise InputError(f"trainer.{name}: expected another field, this command does not support it")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise InputError(f"trainer.{name}: expected a field of TrainingArguments, got an unknown one{hint}")
        if name == "metric_for_best_model" and value not in ("loss", "eval_loss"):
            raise InputError(f"trainer.{name}: expected loss, the one that is measured, got {value!r}")
        if isinstance(known[name], (int, float)) and not isinstance(value, (int, float)):
            raise InputError(f"trainer.{name}: expected {type(known[name]).__name__}, got {value!r}")


def _why_no_fsdp(fields: dict[str, Any]) -> str:
    if fields.get("use_cpu", not torch.accelerator.is_available()):
        return "expected an accelerator: on CPU accelerate trains with DDP and shards nothing"
    return "expected training.sharded, since the trainer writes pickles as checkpoints of a model in pieces"
