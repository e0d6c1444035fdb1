"""Settings of trainings: what all share, pretraining, fine-tuning and distillation."""

from dataclasses import field
from pathlib import Path
from typing import Literal

from linformer_kit.errors import InputError
from linformer_kit.settings.declare import (
    Adapter,
    Amount,
    Argument,
    Auto,
    BelowOne,
    Column,
    Count,
    CountOrZero,
    Distillation,
    Evaluation,
    File,
    Folder,
    Linear,
    Machine,
    Metric,
    Model,
    ModelName,
    Output,
    Positive,
    Seed,
    Share,
    Texts,
    Timeout,
    Training,
    settings,
)
from linformer_kit.settings.files import is_local_path
from linformer_kit.settings.model import LinearizeSettings, ModelSettings, ResizeMode
from linformer_kit.settings.shared import (
    CorpusSettings,
    DocumentSettings,
    LabelledSettings,
    ResumeSettings,
    TrainingTextSettings,
)


@settings
class TrainingSettings(ResumeSettings):
    """Settings of any training; named as in transformers' TrainingArguments where it has the setting too."""

    # Folder for the model, checkpoints and results; default: a new folder below runs/.
    output_dir: Output[Folder | None] = None
    per_device_train_batch_size: Training[Count]  # Sequences per device and forward pass.
    per_device_eval_batch_size: Evaluation[Count]  # Sequences per device and forward pass in evaluation.
    gradient_accumulation_steps: Training[Count] = 1  # Forward passes per update.
    learning_rate: Training[Amount]  # Highest learning rate, reached at the end of the warm-up.
    weight_decay: Training[Amount] = 0.01  # AdamW's weight decay; not applied to biases and LayerNorms.
    adam_beta1: Training[BelowOne] = 0.9  # AdamW's decay of the first moment.
    adam_beta2: Training[BelowOne] = 0.999  # AdamW's decay of the second moment.
    adam_epsilon: Training[Positive] = 1e-8  # AdamW's epsilon.
    # Learning rate of E and F, or of W_P with `projection: dynamic`, as a multiple of learning_rate.
    projection_learning_rate_factor: Training[Amount] = 1.0
    max_grad_norm: Training[Amount] = 1.0  # Clip the gradient norm to this value; 0: no clipping.
    max_skipped_updates: Training[CountOrZero] = 0  # Number of non-finite updates to skip before stopping.
    save_total_limit: Evaluation[Count | None] = 2  # Maximum number of checkpoints to keep; older ones are removed.
    logging_steps: Evaluation[Count] = 10  # Updates between log lines.
    bf16: Machine[Auto] = "auto"  # Mixed precision with bfloat16; `auto` where the processor has bf16 instructions.
    fp16: Machine[bool] = False  # Mixed precision with float16 and loss scaling, instead of bf16.
    torch_compile: Machine[bool] = False  # Compile the model with torch.compile.
    # Shard parameters, gradients and AdamW's moments over the processes (FSDP2); needs torchrun.
    fully_shard: Machine[bool] = False
    full_determinism: Machine[bool] = False  # Use deterministic kernels only; slower.
    use_cpu: Machine[bool] = False  # Train on the CPU even where there is an accelerator.
    dataloader_num_workers: Machine[CountOrZero] = 0  # Number of worker processes that prepare batches.
    ddp_timeout: Machine[Timeout] = 1800  # Timeout in seconds of communication between processes.
    # Experiment trackers of accelerate, separated by commas: tensorboard, wandb, mlflow, comet_ml, …, or none.
    report_to: Evaluation[str] = "tensorboard"

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16 == "true":
            raise InputError("bf16, fp16: expected at most one of them, got both")


@settings
class OneModelTrainingSettings(TrainingSettings):
    """A training of one model, without a teacher."""

    # Learning rate after the warm-up: linear or cosine decay to 0, or constant.
    lr_scheduler_type: Training[Literal["linear", "cosine", "constant"]] = "linear"
    # Resize a model of this package to this maximum sequence length before training, in tokens; default: no resizing.
    resize_to: Model[int | None] = None
    # How E, F and position embeddings are resized: interpolated (`interpolate`), which trains better
    # (docs/learning.md), or repeated (`extend`), which keeps the outputs of texts of the old length.
    resize_mode: Model[ResizeMode] = "interpolate"
    activation_checkpointing: Machine[bool] = False  # Recompute activations in the backward pass, to save memory.


@settings
class UpdateSettings(TrainingSettings):
    """A training that is planned in updates."""

    # Share of the tokens to predict by a masked language model; of these 80 % become <mask>, 10 % a random token, 10 %
    # stay.
    mlm_probability: Training[Share] = 0.15
    max_steps: Training[Count]  # Number of updates.
    warmup_steps: Training[CountOrZero]  # Updates of linear warm-up.
    eval_steps: Evaluation[Count]  # Updates between evaluations.
    save_steps: Evaluation[Count]  # Updates between checkpoints.
    seed: Training[Seed] = 0  # Seed of all random numbers.


@settings
class PretrainSettings(CorpusSettings, UpdateSettings, OneModelTrainingSettings):
    """Pretrain a masked language model on text."""

    model: ModelSettings  # The architecture: its settings are --model.NAME.
    # Folder or hub id of a masked language model of this package to train further. Its architecture and tokenizer
    # replace `model` and `tokenizer`; default: a new model.
    from_model: Model[ModelName | None] = None
    # Folder or hub id of an existing tokenizer; default: a byte-level BPE trained on the corpus.
    tokenizer: Model[ModelName | None] = None
    # Values of k: each update draws one, so that the model runs with any of them (`set_projected_dim`); default: only
    # projected_dim.
    elastic_projected_dims: Linear[list[int] | None] = None
    # Keep the checkpoint with the lowest validation loss and load it at the end; needs save_steps equal to eval_steps.
    load_best_model_at_end: Evaluation[bool] = False


@settings
class FinetuneSettings(LabelledSettings, TrainingTextSettings, OneModelTrainingSettings):
    """Fine-tune an encoder to classify texts (Table 2)."""

    # Folder or hub id of an encoder: of this package, or any of transformers that can classify sequences.
    model: Model[ModelName]
    # Training files, folders or globs (.csv .tsv .jsonl .parquet).
    train_file: Texts[list[File] | None] = None
    # Validation files, folders or globs; default: a part of the training texts is held out.
    validation_file: Texts[list[File] | None] = None
    validation_fraction: Texts[Share] = 0.1
    split_seed: Texts[Seed] = 0  # Seed of the validation split.
    max_train_samples: Texts[Count | None] = None  # Maximum number of training texts, drawn at random; default: all.
    # Maximum input length in tokens, longer texts are truncated; default: the model's maximum.
    max_length: Texts[int | None] = None
    # `balanced` weights each class by its inverse frequency in the training texts.
    class_weight: Training[Literal["none", "balanced"]] = "none"
    label_smoothing_factor: Training[BelowOne] = 0.0  # Share of each target that is spread evenly over all classes.
    per_device_train_batch_size: Training[Count] = 16
    per_device_eval_batch_size: Evaluation[Count] = 32
    learning_rate: Training[Amount] = 5e-5
    projection_learning_rate_factor: Training[Amount] = 0.1
    num_train_epochs: Training[Amount] = 3.0  # Epochs: passes over the training texts.
    max_steps: Training[Count | None] = None  # Number of updates; overrides num_train_epochs.
    warmup_steps: Training[Amount] = 0.06  # Updates of linear warm-up; below 1: a share of all updates.
    eval_steps: Evaluation[Count | None] = None  # Updates between evaluations and checkpoints; default: once per epoch.
    # Stop after this many evaluations without a better metric; default: no early stopping.
    early_stopping_patience: Evaluation[Count | None] = None
    # Metric that selects the best checkpoint; default: the task's, else accuracy, or micro_f1 for multi-label texts.
    metric_for_best_model: Evaluation[Metric | None] = None
    save_total_limit: Evaluation[Count | None] = 1
    # Seeds of the head's weights, the order and dropout; one training for each.
    seeds: Training[list[Seed]] = field(default_factory=lambda: [0])


@settings
class DistillSettings(LinearizeSettings, DocumentSettings, TrainingTextSettings, UpdateSettings):
    """Linearise an encoder and distil the original into it."""

    # Folder or hub id of an encoder: a masked language model, a text or token classifier, a question answering model,
    # or an encoder without a head.
    teacher: Argument[ModelName]
    output_dir: Argument[Folder | None] = None
    # Folder of an existing linear student to train further; default: the linearised teacher.
    student: Model[Folder | None] = None
    # Train a LoRA adapter of the layers' linear maps, and E and F, instead of all weights. It is saved in `adapter/` in
    # PEFT's format, in addition to the model; needs `pip install linformer-kit[adapter]`.
    adapter: Adapter[bool] = False
    adapter_rank: Adapter[Count] = 16  # Rank r of the LoRA adapter.
    # Hub id of the teacher, for the adapter's files; default: the name of the teacher.
    base_model_name: Adapter[str | None] = None
    text_pair_column: Texts[Column | None] = None  # Column of the second text, where inputs are pairs.
    # Cut documents into passages of whole sentences: half of the batches have n tokens, the others random lengths;
    # false: each text is one input; default: false for text classifiers and pairs, else true.
    packing: Texts[bool | None] = None
    max_eval_samples: Texts[Count] = 64  # Maximum number of validation inputs.
    per_device_train_batch_size: Training[Count] = 8
    per_device_eval_batch_size: Evaluation[Count] = 8
    learning_rate: Training[Amount] = 3e-4
    weight_decay: Training[Amount] = 0.0
    max_steps: Training[Count] = 1200
    # Updates of the first phase, which trains each layer separately on the inputs of the teacher's layer; default: a
    # quarter of max_steps.
    layerwise_steps: Distillation[int | None] = None
    # Learning rate of the second phase, which trains all layers together, as a multiple of learning_rate; each phase
    # has its own warm-up and decay to 0.
    joint_learning_rate_factor: Distillation[Amount] = 0.2
    temperature: Distillation[Positive] = 1.0  # Softmax temperature of the loss on the predictions.
    warmup_steps: Training[CountOrZero] = 50
    eval_steps: Evaluation[Count] = 200
    save_steps: Evaluation[Count] = 200


def check_model_is_kept(model: str | None, output_dir: str | None) -> None:
    """Raise an error if the output folder holds the model that a training starts from: `overwrite` would remove it.

    Raises:
        InputError: if it does.
    """
    if model is not None and output_dir is not None and is_local_path(model):
        source, folder = Path(model).resolve(), Path(output_dir).resolve()
        if source == folder or folder in source.parents:
            raise InputError(f"output_dir: expected another folder than that of the model, got {output_dir}")
