"""Settings of text classification: fine-tuning, evaluation and prediction."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from linformer_kit.settings.declare import (
    Amount,
    Auto,
    BelowOne,
    Column,
    Count,
    Evaluation,
    File,
    Folder,
    Machine,
    Metric,
    Model,
    ModelName,
    Output,
    Positive,
    Prediction,
    Seed,
    Share,
    Texts,
    Training,
    settings,
)
from linformer_kit.settings.training import OneModelTrainingSettings

TaskName = Literal["sst2", "imdb", "qnli", "qqp"]


@settings
class LabelledSettings:
    """Labelled texts: one of the paper's tasks, files, or a data set of the hub.

    Attributes:
        task: A task of section 5.2 of the paper, from the hub or from data_dir; it sets columns and classes.
        data_dir: Folder that has, in a subfolder named after the task, the task's original files.
        dataset_name: Data set on the Hugging Face hub, instead of files.
        dataset_config_name: Configuration of that data set.
        text_column: Column of the text; default: the task's, else `text`.
        text_pair_column: Column of the second text, where inputs are pairs; default: the task's.
        label_column: Column of the class, or of a list of classes (multi-label); default: the task's, else `label`.
    """

    task: Texts[TaskName | None] = None
    data_dir: Texts[Folder | None] = None
    dataset_name: Texts[str | None] = None
    dataset_config_name: Texts[str | None] = None
    text_column: Texts[Column | None] = None
    text_pair_column: Texts[Column | None] = None
    label_column: Texts[Column | None] = None


@settings
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

    model: Model[ModelName]
    train_file: Texts[list[File] | None] = None
    validation_file: Texts[list[File] | None] = None
    validation_fraction: Texts[Share] = 0.1
    split_seed: Texts[Seed] = 0
    max_train_samples: Texts[Count | None] = None
    max_eval_samples: Texts[Count | None] = None
    max_length: Texts[int | None] = None
    cache_dir: Texts[Folder | None] = None
    class_weight: Training[Literal["none", "balanced"]] = "none"
    label_smoothing_factor: Training[BelowOne] = 0.0
    per_device_train_batch_size: Training[Count] = 16
    per_device_eval_batch_size: Evaluation[Count] = 32
    learning_rate: Training[Amount] = 5e-5
    projection_learning_rate_factor: Training[Amount] = 0.1
    num_train_epochs: Training[Positive] = 3.0
    max_steps: Training[Count | None] = None
    warmup_steps: Training[Amount] = 0.06
    eval_steps: Evaluation[Count | None] = None
    early_stopping_patience: Evaluation[Count | None] = None
    metric_for_best_model: Evaluation[Metric | None] = None
    save_total_limit: Evaluation[Count | None] = 1
    seeds: Training[list[Seed]] = field(default_factory=lambda: [0])


@settings
class ClassifierSettings:
    """A classifier and its inputs.

    Attributes:
        model: Folder or hub id of a classifier.
        max_length: Maximum input length in tokens, longer texts are truncated; default: that of the fine-tuning.
        threshold: Minimum probability to predict a class (multi-label only).
        batch_size: Texts per forward pass.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
    """

    model: Model[ModelName]
    max_length: Texts[int | None] = None
    threshold: Prediction[Annotated[float, Field(ge=0, le=1)]] = 0.5
    batch_size: Machine[Count] = 32
    bf16: Machine[Auto] = "auto"


@settings
class EvaluateSettings(LabelledSettings, ClassifierSettings):
    """Evaluation of a classifier on labelled texts.

    Attributes:
        validation_file: Files, folders or globs of labelled texts (.csv .tsv .jsonl .parquet).
        split: Split of a data set of the hub; default: the task's, else validation.
        max_eval_samples: Maximum number of texts to evaluate, drawn at random; default: all.
        output_dir: New folder for metrics, confusion matrix and the worst mistakes; default: only print.
    """

    validation_file: Texts[list[File] | None] = None
    split: Texts[str | None] = None
    max_eval_samples: Texts[Count | None] = None
    output_dir: Output[Folder | None] = None


@settings
class PredictSettings(ClassifierSettings):
    """Prediction of the classes of new texts.

    Attributes:
        file: File with texts: a table (.csv .tsv .jsonl .parquet), or .txt or a pipe with one text per line.
        output: File for the predictions, JSON Lines; default: standard output.
        text_column: Column of the text; default: that of the fine-tuning, else `text`.
        text_pair_column: Column of the second text; default: that of the fine-tuning.
        resume: Resume after the last texts that were recorded.
        overwrite: Overwrite an existing output.
    """

    file: Texts[File]
    output: Output[File | None] = None
    text_column: Texts[Column | None] = None
    text_pair_column: Texts[Column | None] = None
    resume: Output[bool] = False
    overwrite: Output[bool] = False
