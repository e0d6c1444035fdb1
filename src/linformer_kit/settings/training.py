"""Settings that all trainings share, and their checks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from linformer_kit.errors import InputError
from linformer_kit.settings.files import is_local_path
from linformer_kit.settings.model import ResizeMode

LARGEST_SEED = 2**32 - 1  # of numpy
_MOST_SECONDS = 2**31 - 1

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
    "max_grad_norm",
    "dataloader_num_workers",
    "max_skipped_updates",
)
_BELOW_ONE = ("adam_beta1", "adam_beta2", "label_smoothing_factor")


@dataclass(kw_only=True)
class TrainingSettings:
    """Settings of any training; named as in transformers' TrainingArguments where it has the setting too.

    Attributes:
        output_dir: Folder for the model, checkpoints and results; default: a new folder below runs/.
        per_device_train_batch_size: Sequences per device and forward pass.
        per_device_eval_batch_size: Sequences per device and forward pass in evaluation.
        gradient_accumulation_steps: Forward passes per update.
        learning_rate: Highest learning rate, reached at the end of the warm-up.
        weight_decay: AdamW's weight decay; not applied to biases and LayerNorms.
        adam_beta1: AdamW's decay of the first moment.
        adam_beta2: AdamW's decay of the second moment.
        adam_epsilon: AdamW's epsilon.
        projection_learning_rate_factor: Learning rate of E and F, or of W_P with `projection: dynamic`, as a multiple
            of learning_rate.
        max_grad_norm: Clip the gradient norm to this value; 0: no clipping.
        max_skipped_updates: Number of non-finite updates to skip before stopping.
        save_total_limit: Maximum number of checkpoints to keep; older ones are removed.
        logging_steps: Updates between log lines.
        bf16: Mixed precision with bfloat16; `auto` where the processor has bf16 instructions.
        fp16: Mixed precision with float16 and loss scaling, instead of bf16.
        torch_compile: Compile the model with torch.compile.
        fully_shard: Shard parameters, gradients and AdamW's moments over the processes (FSDP2); needs torchrun.
        full_determinism: Use deterministic kernels only; slower.
        use_cpu: Train on the CPU even where there is an accelerator.
        dataloader_num_workers: Number of worker processes that prepare batches.
        ddp_timeout: Timeout in seconds of communication between processes.
        report_to: Experiment trackers of accelerate, separated by commas: tensorboard, wandb, mlflow, comet_ml, …, or
            none.
        resume: Resume from the newest intact checkpoint in output_dir, or start from the beginning if there is none.
        overwrite: Delete the run in output_dir and start again.
    """

    output_dir: str | None = None
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    gradient_accumulation_steps: int = 1
    learning_rate: float
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    projection_learning_rate_factor: float = 1.0
    max_grad_norm: float = 1.0
    max_skipped_updates: int = 0
    save_total_limit: int | None = 2
    logging_steps: int = 10
    bf16: Literal["auto", "true", "false"] = "auto"
    fp16: bool = False
    torch_compile: bool = False
    fully_shard: bool = False
    full_determinism: bool = False
    use_cpu: bool = False
    dataloader_num_workers: int = 0
    ddp_timeout: int = 1800
    report_to: str = "tensorboard"
    resume: bool = False
    overwrite: bool = False


@dataclass(kw_only=True)
class OneModelTrainingSettings(TrainingSettings):
    """A training of one model, without a teacher.

    Attributes:
        lr_scheduler_type: Learning rate after the warm-up: linear or cosine decay to 0, or constant.
        resize_to: Resize a model of this package to this maximum sequence length before training, in tokens; default:
            no resizing.
        resize_mode: How E, F and position embeddings are resized: interpolated (`interpolate`), which trains better
            (docs/learning.md), or repeated (`extend`), which keeps the outputs of texts of the old length.
        activation_checkpointing: Recompute activations in the backward pass, to save memory.
    """

    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    resize_to: int | None = None
    resize_mode: ResizeMode = "interpolate"
    activation_checkpointing: bool = False


def check_training(settings: TrainingSettings) -> None:
    """Raise an error for settings out of range.

    Raises:
        InputError: with the name of the setting, the expected range and the value.
    """
    for names, least in ((_AT_LEAST_ONE, 1), (_AT_LEAST_ZERO, 0)):
        for name in names:
            value = getattr(settings, name, None)
            if value is not None and not value >= least:
                raise InputError(f"{name}: expected {least} or more, got {value}")
    seeds = [(name, getattr(settings, name, None)) for name in ("seed", "split_seed")]
    for name, seed in (*seeds, *(("seeds", each) for each in getattr(settings, "seeds", ()))):
        if seed is not None and not 0 <= seed <= LARGEST_SEED:
            raise InputError(f"{name}: expected 0 to {LARGEST_SEED}, got {seed}")
    for name in _BELOW_ONE:
        if not 0 <= (value := getattr(settings, name, 0.0)) < 1:
            raise InputError(f"{name}: expected 0 or more and less than 1, got {value}")
    if not settings.adam_epsilon > 0:
        raise InputError(f"adam_epsilon: expected more than 0, got {settings.adam_epsilon}")
    if not 1 <= settings.ddp_timeout <= _MOST_SECONDS:
        raise InputError(f"ddp_timeout: expected 1 to {_MOST_SECONDS} seconds, got {settings.ddp_timeout}")
    if settings.fp16 and settings.bf16 == "true":
        raise InputError("bf16, fp16: expected at most one of them, got both")


def check_model_is_kept(model: str | None, output_dir: str | None) -> None:
    """Raise an error if the output folder holds the model that a training starts from: `overwrite` would remove it.

    Raises:
        InputError: if it does.
    """
    if model is not None and output_dir is not None and is_local_path(model):
        source, folder = Path(model).resolve(), Path(output_dir).resolve()
        if source == folder or folder in source.parents:
            raise InputError(f"output_dir: expected another folder than that of the model, got {output_dir}")
