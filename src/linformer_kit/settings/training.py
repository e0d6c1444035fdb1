"""Settings that all trainings share, and their checks."""

from pathlib import Path
from typing import Literal

from linformer_kit.errors import InputError
from linformer_kit.settings.declare import (
    Amount,
    Auto,
    BelowOne,
    Count,
    CountOrZero,
    Evaluation,
    Folder,
    Machine,
    Model,
    Output,
    Positive,
    Timeout,
    Training,
    settings,
)
from linformer_kit.settings.files import is_local_path
from linformer_kit.settings.model import ResizeMode


@settings
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

    output_dir: Output[Folder | None] = None
    per_device_train_batch_size: Training[Count]
    per_device_eval_batch_size: Evaluation[Count]
    gradient_accumulation_steps: Training[Count] = 1
    learning_rate: Training[Amount]
    weight_decay: Training[Amount] = 0.01
    adam_beta1: Training[BelowOne] = 0.9
    adam_beta2: Training[BelowOne] = 0.999
    adam_epsilon: Training[Positive] = 1e-8
    projection_learning_rate_factor: Training[Amount] = 1.0
    max_grad_norm: Training[Amount] = 1.0
    max_skipped_updates: Training[CountOrZero] = 0
    save_total_limit: Evaluation[Count | None] = 2
    logging_steps: Evaluation[Count] = 10
    bf16: Machine[Auto] = "auto"
    fp16: Machine[bool] = False
    torch_compile: Machine[bool] = False
    fully_shard: Machine[bool] = False
    full_determinism: Machine[bool] = False
    use_cpu: Machine[bool] = False
    dataloader_num_workers: Machine[CountOrZero] = 0
    ddp_timeout: Machine[Timeout] = 1800
    report_to: Evaluation[str] = "tensorboard"
    resume: Output[bool] = False
    overwrite: Output[bool] = False

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16 == "true":
            raise InputError("bf16, fp16: expected at most one of them, got both")


@settings
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

    lr_scheduler_type: Training[Literal["linear", "cosine", "constant"]] = "linear"
    resize_to: Model[int | None] = None
    resize_mode: Model[ResizeMode] = "interpolate"
    activation_checkpointing: Machine[bool] = False


def check_model_is_kept(model: str | None, output_dir: str | None) -> None:
    """Raise an error if the output folder holds the model that a training starts from: `overwrite` would remove it.

    Raises:
        InputError: if it does.
    """
    if model is not None and output_dir is not None and is_local_path(model):
        source, folder = Path(model).resolve(), Path(output_dir).resolve()
        if source == folder or folder in source.parents:
            raise InputError(f"output_dir: expected another folder than that of the model, got {output_dir}")
