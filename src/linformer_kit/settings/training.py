"""How to train, whatever it is."""

from dataclasses import dataclass, field
from typing import Any, Literal

from linformer_kit.settings.model import ResizeMode

LARGEST_SEED = 2**32 - 1  # of numpy


@dataclass(kw_only=True)
class TrainingSettings:
    """A training: the fields of transformers' TrainingArguments that people set, under their names there, and our own.

    Attributes:
        output_dir: Where the model and all results go; default: a new folder below runs/.
        per_device_train_batch_size: Sequences per device and forward pass.
        per_device_eval_batch_size: The same in evaluation.
        gradient_accumulation_steps: Forward passes per update.
        learning_rate: Highest learning rate, reached at the end of the warm-up, then falling linearly to 0.
        weight_decay: AdamW's weight decay.
        projection_learning_rate_factor: Learning rate of E and F, as a multiple of learning_rate.
        projection_weight_decay: Weight decay of E and F; default: weight_decay.
        max_grad_norm: Longest gradient; longer ones are scaled down.
        skip_bad_batches: Updates that may be left out because their loss or gradient is no number; one more ends it.
        save_total_limit: Checkpoints kept.
        logging_steps: Updates between lines of the log.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
        dataloader_num_workers: Processes that prepare batches beside the training.
        report_to: Loggers, as in TrainingArguments.
        trainer: Any other field of transformers' TrainingArguments, as --trainer.NAME VALUE.
        resume: Continue in output_dir from its newest whole checkpoint, from the start if there is none.
        overwrite: Start anew in an output_dir that already holds a run.
    """

    output_dir: str | None = None
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    gradient_accumulation_steps: int = 1
    learning_rate: float
    weight_decay: float = 0.01
    projection_learning_rate_factor: float = 1.0
    projection_weight_decay: float | None = None
    max_grad_norm: float = 1.0
    skip_bad_batches: int = 0
    save_total_limit: int | None = 2
    logging_steps: int = 10
    bf16: Literal["auto", "true", "false"] = "auto"
    dataloader_num_workers: int = 0
    report_to: str = "tensorboard"
    trainer: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False


@dataclass(kw_only=True)
class OneModelTrainingSettings(TrainingSettings):
    """A training of one model, without a teacher.

    Attributes:
        resize_to: Longest sequence that a model of this package is resized to before, in tokens; default: its own.
        resize_mode: How it is resized: E, F and positions stretched (`interpolate`) or repeated (`extend`; texts of the
            old length then give what they gave). Stretched ones learn on from a better place (docs/learning.md).
        activation_checkpointing: Recompute activations in the backward pass, to save memory.
    """

    resize_to: int | None = None
    resize_mode: ResizeMode = "interpolate"
    activation_checkpointing: bool = False
