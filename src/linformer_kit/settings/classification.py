"""Settings of text classification: fine-tuning, evaluation and prediction."""

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings.training import OneModelTrainingSettings

TaskName = Literal["sst2", "imdb", "qnli", "qqp"]


@dataclass(kw_only=True)
class LabelledSettings:
    """Labelled texts: one of the paper's tasks, files, or a data set of the hub.

    Attributes:
        task: A task of section 5.2 of the paper, from the hub or from data_dir; it sets columns and classes.
        data_dir: Folder with the task's original files, in it or in a subfolder named after the task.
        dataset_name: Data set on the Hugging Face hub, instead of files.
        dataset_config_name: Configuration of that data set.
        text_column: Column of the text; default: the task's, else `text`.
        text_pair_column: Column of the second text, where inputs are pairs; default: the task's.
        label_column: Column of the class, or of a list of classes (multi-label); default: the task's, else `label`.
        label_separator: Separator of several classes in one string (multi-label); default: the string is one class.
    """

    task: TaskName | None = None
    data_dir: str | None = None
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None


@dataclass(kw_only=True)
class FinetuneSettings(LabelledSettings, OneModelTrainingSettings):
    """Fine-tuning of an encoder to classify texts.

    Attributes:
        model: Folder or hub id of an encoder: of this package, or any of transformers that can classify sequences.
        train_file: Training files, folders or globs (.csv .tsv .jsonl .parquet).
        validation_file: Validation files, folders or globs; default: a part of the training texts is held out.
        validation_fraction: Share of the training texts held out for validation.
        split_seed: Seed of the validation split.
        max_train_samples: Maximum number of training texts, drawn at random; default: all.
        max_eval_samples: Maximum number of validation texts, drawn at random; default: all.
        max_length: Maximum input length in tokens, longer texts are truncated; default: the model's maximum.
        cache_dir: Folder of the cache of tokenised text; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
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

    model: str
    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    validation_fraction: float = 0.1
    split_seed: int = 0
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_length: int | None = None
    cache_dir: str | None = None
    class_weight: Literal["none", "balanced"] = "none"
    label_smoothing_factor: float = 0.0
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 32
    learning_rate: float = 5e-5
    projection_learning_rate_factor: float = 0.1
    num_train_epochs: float = 3.0
    max_steps: int | None = None
    warmup_steps: float = 0.06
    eval_steps: int | None = None
    early_stopping_patience: int | None = None
    metric_for_best_model: str | None = None
    save_total_limit: int | None = 1
    seeds: list[int] = field(default_factory=lambda: [0])


@dataclass(kw_only=True)
class ClassifierSettings:
    """A classifier and its inputs.

    Attributes:
        model: Folder or hub id of a classifier.
        max_length: Maximum input length in tokens; default: that of the fine-tuning.
        stride: Split longer texts into windows that overlap by this number of tokens, and average their probabilities;
            default: longer texts are truncated.
        threshold: Minimum probability to predict a class (multi-label only).
        batch_size: Texts, or windows of longer texts, per forward pass.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
    """

    model: str
    max_length: int | None = None
    stride: int | None = None
    threshold: float = 0.5
    batch_size: int = 32
    bf16: Literal["auto", "true", "false"] = "auto"


@dataclass(kw_only=True)
class EvaluateSettings(LabelledSettings, ClassifierSettings):
    """Evaluation of a classifier on labelled texts.

    Attributes:
        validation_file: Files, folders or globs of labelled texts (.csv .tsv .jsonl .parquet).
        split: Split of a data set of the hub; default: the task's, else validation.
        max_eval_samples: Maximum number of texts to evaluate, drawn at random; default: all.
        output_dir: New folder for metrics, confusion matrix and the worst mistakes; default: only print.
    """

    validation_file: list[str] | None = None
    split: str | None = None
    max_eval_samples: int | None = None
    output_dir: str | None = None


@dataclass(kw_only=True)
class PredictSettings(ClassifierSettings):
    """Prediction of the classes of new texts.

    Attributes:
        file: File with texts: a table (.csv .tsv .jsonl .parquet), or .txt or a pipe with one text per line.
        output: File for the predictions, JSON Lines; default: standard output.
        text_column: Column of the text; default: that of the fine-tuning, else `text`.
        text_pair_column: Column of the second text; default: that of the fine-tuning.
        resume: Resume after the last complete line of output.
        overwrite: Overwrite an existing output.
    """

    file: str
    output: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    resume: bool = False
    overwrite: bool = False
