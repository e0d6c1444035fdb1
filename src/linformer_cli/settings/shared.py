"""Settings that several commands have: texts, resumption, where a model runs, classifiers, and training."""

from typing import Literal

from linformer_cli.settings.declare import (
    Amount,
    Argument,
    BelowOne,
    Count,
    CountOrZero,
    Document,
    Evaluation,
    File,
    Folder,
    Machine,
    ModelName,
    OfFiles,
    Output,
    Positive,
    Precision,
    Probability,
    Seed,
    Share,
    Texts,
    Timeout,
    Training,
    Workers,
    settings,
)


@settings
class PairSettings:
    """Columns of texts or of pairs of texts."""

    text_column: Texts[str | None] = None
    """Column of the text; default: that of the fine-tuning, or `text`."""
    text_pair_column: Texts[str | None] = None
    """Column of second texts; default: that of the fine-tuning."""


@settings
class LabelledSettings(PairSettings):
    """Labelled texts of files, or of a data set of the hub."""

    dataset_name: Texts[str | None] = None
    """Data set on the Hugging Face hub, instead of files."""
    dataset_config_name: Texts[str | None] = None
    """Configuration of that data set."""
    label_column: Texts[str | None] = None
    """Column of the class, or of a list of classes (multi-label); default: that of the fine-tuning, or `label`."""
    skip_unlabelled: Texts[bool] = False
    """Leave out rows without a class, which are errors otherwise."""
    validation_file: Texts[list[File] | None] = None
    """Validation files, folders or globs (.csv .tsv .jsonl .parquet)."""


@settings
class CachedTextSettings:
    """Documents of a training, which are read once; a part of them is held out for validation."""

    train_file: Texts[list[File] | None] = None
    """Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: Python's standard library."""
    validation_file: Texts[list[File] | None] = None
    """Files or folders; default: a part of the training texts."""
    validation_fraction: Texts[Share] = 0.05
    """Share of the training texts held out for validation."""
    text_column: Texts[str] = "text"
    """Text column of .jsonl, .csv, .tsv and .parquet files."""
    document: Texts[Document] = "file"
    """What a document of .txt files is: the whole file, or a line."""


@settings
class CorpusSettings(CachedTextSettings):
    """Documents for training and validation, of files or of the hub."""

    dataset_name: Texts[str | None] = None
    """Data set on the Hugging Face hub, instead of train_file."""
    dataset_config_name: Texts[str | None] = None
    """Configuration of that data set."""
    split_seed: Texts[Seed | None] = None
    """Seed of the validation split; default: seed."""


@settings
class ResumeSettings:
    """What happens to the output of an earlier run."""

    resume: Output[bool] = False
    """Continue an interrupted run from what it saved; start one if there is none."""


@settings
class DeviceSettings:
    """Where a model runs."""

    device: Machine[str | None] = None
    """Such as `cpu`, `cuda` or `cuda:1`; default: the accelerator if there is one."""


@settings
class WeightSettings(DeviceSettings):
    """Where a model runs, with weights of which data type."""

    dtype: Machine[Precision] = "auto"
    """Data type of weights; `auto`: as saved; `bfloat16`: faster, less exact."""


@settings
class ClassifierSettings(WeightSettings):
    """A classifier and its inputs."""

    model: Argument[ModelName]
    """Folder or hub id of a classifier."""
    max_length: Texts[int | None] = None
    """Tokens at which longer texts are truncated; default: as in the fine-tuning."""
    threshold: Output[Probability] = 0.5
    """Minimum probability to predict a class (multi-label only)."""
    batch_size: Machine[Count] = 32
    """Texts per forward pass."""


@settings
class TrainingSettings(ResumeSettings, DeviceSettings):
    """Settings of any training; named as in transformers' TrainingArguments where it has the setting too."""

    output_dir: Output[Folder | None] = None
    """Folder of model, checkpoints and results; default: one in `runs/`."""
    per_device_train_batch_size: Training[Count]
    """Sequences per device and forward pass, also in evaluation."""
    seed: Training[Seed] = 0
    """Seed of all random numbers."""
    gradient_accumulation_steps: Training[Count] = 1
    """Forward passes per update."""
    learning_rate: Training[Amount]
    """Highest learning rate, reached at the end of the warm-up."""
    weight_decay: Training[Amount] = 0.01
    """AdamW's weight decay; not applied to biases and LayerNorms."""
    adam_beta1: OfFiles[BelowOne] = 0.9
    """AdamW's decay of the first moment."""
    adam_beta2: OfFiles[BelowOne] = 0.999
    """AdamW's decay of the second moment."""
    adam_epsilon: OfFiles[Positive] = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: Training[Amount] = 1.0
    """Clip the gradient norm to this value; 0: no clipping."""
    save_total_limit: Evaluation[Count | None] = 2
    """Maximum number of checkpoints to keep; older ones are removed."""
    logging_steps: Evaluation[Count] = 10
    """Updates between log lines."""
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    """Data type of matrix products (mixed precision: weights stay in float32); `auto`: bfloat16 where the processor has
    instructions for it."""
    torch_compile: Machine[bool] = False
    """Compile the model with torch.compile."""
    fully_shard: Machine[bool] = False
    """Shard weights, gradients and moments over processes (FSDP2, torchrun)."""
    dataloader_num_workers: Machine[Workers] = 0
    """Number of worker processes that prepare batches."""
    ddp_timeout: OfFiles[Timeout] = 1800
    """Timeout in seconds of communication between processes."""
    report_to: Evaluation[str] = "tensorboard"
    """Trackers, separated by commas: tensorboard, wandb, mlflow, …, or none."""


@settings
class OneModelTrainingSettings(TrainingSettings):
    """A training of one model, without a teacher."""

    lr_scheduler_type: Training[Literal["linear", "cosine", "constant"]] = "linear"
    """Learning rate after the warm-up: linear or cosine decay to 0, or constant."""
    projection_learning_rate_factor: Training[Amount] = 1.0
    """Rate of E and F (or W_P), as a multiple of learning_rate."""
    activation_checkpointing: Machine[bool] = False
    """Recompute activations in the backward pass, to save memory."""


@settings
class UpdateSettings(TrainingSettings):
    """A training that is planned in updates."""

    max_steps: Training[Count]
    """Number of updates."""
    warmup_steps: Training[CountOrZero]
    """Updates of linear warm-up."""
    eval_steps: Evaluation[Count]
    """Updates between evaluations."""
    save_steps: Evaluation[Count]
    """Updates between checkpoints."""
