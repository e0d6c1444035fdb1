"""Settings of trainings: what all share, pretraining, fine-tuning and distillation."""

from dataclasses import field
from pathlib import Path
from typing import Literal

from linformer_kit.errors import InputError
from linformer_kit.settings.declare import (
    Adapter,
    Amount,
    Auto,
    BelowOne,
    Column,
    Count,
    CountOrZero,
    Distillation,
    Evaluation,
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


@settings
class UpdateSettings(TrainingSettings):
    """A training that is planned in updates.

    Attributes:
        mlm_probability: Share of the tokens to predict by a masked language model; of these 80 % become <mask>, 10 % a
            random token, 10 % stay.
        max_steps: Number of updates.
        warmup_steps: Updates of linear warm-up.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        seed: Seed of all random numbers.
    """

    mlm_probability: Training[Share] = 0.15
    max_steps: Training[Count]
    warmup_steps: Training[CountOrZero]
    eval_steps: Evaluation[Count]
    save_steps: Evaluation[Count]
    seed: Training[Seed] = 0


@settings
class PretrainSettings(CorpusSettings, UpdateSettings, OneModelTrainingSettings):
    """Masked-language-model pretraining.

    Attributes:
        model: The architecture: its settings are --model.NAME.
        from_model: Folder or hub id of a masked language model of this package to train further. Its architecture and
            tokenizer replace `model` and `tokenizer`; default: a new model.
        tokenizer: Folder or hub id of an existing tokenizer; default: a byte-level BPE trained on the corpus.
        elastic_projected_dims: Values of k: each update draws one, so that the model runs with any of them
            (`set_projected_dim`); default: only projected_dim.
        load_best_model_at_end: Keep the checkpoint with the lowest validation loss and load it at the end; needs
            save_steps equal to eval_steps.
    """

    model: ModelSettings
    from_model: Model[ModelName | None] = None
    tokenizer: Model[ModelName | None] = None
    elastic_projected_dims: Linear[list[int] | None] = None
    load_best_model_at_end: Evaluation[bool] = False


@settings
class FinetuneSettings(LabelledSettings, TrainingTextSettings, OneModelTrainingSettings):
    """Fine-tuning of an encoder to classify texts.

    Attributes:
        model: Folder or hub id of an encoder: of this package, or any of transformers that can classify sequences.
        train_file: Training files, folders or globs (.csv .tsv .jsonl .parquet).
        validation_file: Validation files, folders or globs; default: a part of the training texts is held out.
        split_seed: Seed of the validation split.
        max_train_samples: Maximum number of training texts, drawn at random; default: all.
        max_length: Maximum input length in tokens, longer texts are truncated; default: the model's maximum.
        class_weight: `balanced` weights each class by its inverse frequency in the training texts.
        label_smoothing_factor: Share of each target that is spread evenly over all classes.
        num_train_epochs: Epochs: passes over the training texts.
        max_steps: Number of updates; overrides num_train_epochs.
        warmup_steps: Updates of linear warm-up; below 1: a share of all updates.
        eval_steps: Updates between evaluations and checkpoints; default: once per epoch.
        early_stopping_patience: Stop after this many evaluations without a better metric; default: no early stopping.
        metric_for_best_model: Metric that selects the best checkpoint; default: the task's, else accuracy, or micro_f1
            for multi-label texts.
        seeds: Seeds of the head's weights, the order and dropout; one training for each.
    """

    model: Model[ModelName]
    validation_fraction: Texts[Share] = 0.1
    split_seed: Texts[Seed] = 0
    max_train_samples: Texts[Count | None] = None
    max_length: Texts[int | None] = None
    class_weight: Training[Literal["none", "balanced"]] = "none"
    label_smoothing_factor: Training[BelowOne] = 0.0
    per_device_train_batch_size: Training[Count] = 16
    per_device_eval_batch_size: Evaluation[Count] = 32
    learning_rate: Training[Amount] = 5e-5
    projection_learning_rate_factor: Training[Amount] = 0.1
    num_train_epochs: Training[Amount] = 3.0
    max_steps: Training[Count | None] = None
    warmup_steps: Training[Amount] = 0.06
    eval_steps: Evaluation[Count | None] = None
    early_stopping_patience: Evaluation[Count | None] = None
    metric_for_best_model: Evaluation[Metric | None] = None
    save_total_limit: Evaluation[Count | None] = 1
    seeds: Training[list[Seed]] = field(default_factory=lambda: [0])


@settings
class DistillSettings(LinearizeSettings, DocumentSettings, TrainingTextSettings, UpdateSettings):
    """Distillation of a full-attention teacher into a linear student.

    Attributes:
        teacher: Folder or hub id of an encoder: a masked language model, a text or token classifier, a question
            answering model, or an encoder without a head.
        output_dir: Folder for the model, checkpoints and results.
        student: Folder of an existing linear student to train further; default: the linearised teacher.
        adapter: Train a LoRA adapter of the layers' linear maps, and E and F, instead of all weights. It is saved in
            `adapter/` in PEFT's format, in addition to the model; needs `pip install linformer-kit[adapter]`.
        adapter_rank: Rank r of the LoRA adapter.
        base_model_name: Hub id of the teacher, for the adapter's files; default: the name of the teacher.
        text_pair_column: Column of the second text, where inputs are pairs.
        packing: Cut documents into passages of whole sentences: half of the batches have n tokens, the others random
            lengths; false: each text is one input; default: false for text classifiers and pairs, else true.
        max_eval_samples: Maximum number of validation inputs.
        layerwise_steps: Updates of the first phase, which trains each layer separately on the inputs of the teacher's
            layer; default: a quarter of max_steps.
        joint_learning_rate_factor: Learning rate of the second phase, which trains all layers together, as a multiple
            of learning_rate; each phase has its own warm-up and decay to 0.
        temperature: Softmax temperature of the loss on the predictions.
    """

    teacher: Model[ModelName]
    student: Model[Folder | None] = None
    adapter: Adapter[bool] = False
    adapter_rank: Adapter[Count] = 16
    base_model_name: Adapter[str | None] = None
    text_pair_column: Texts[Column | None] = None
    packing: Texts[bool | None] = None
    max_eval_samples: Texts[Count] = 64
    per_device_train_batch_size: Training[Count] = 8
    per_device_eval_batch_size: Evaluation[Count] = 8
    learning_rate: Training[Amount] = 3e-4
    weight_decay: Training[Amount] = 0.0
    max_steps: Training[Count] = 1200
    layerwise_steps: Distillation[int | None] = None
    joint_learning_rate_factor: Distillation[Amount] = 0.2
    temperature: Distillation[Positive] = 1.0
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
