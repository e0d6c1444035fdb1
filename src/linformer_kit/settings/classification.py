"""Which texts to classify, how to learn it, and how to use what was learnt."""

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings.training import OneModelTrainingSettings

TaskName = Literal["sst2", "imdb", "qnli", "qqp"]


@dataclass(kw_only=True)
class LabelledSettings:
    """Texts with classes: one of the paper's tasks, files, or a data set of the hub.

    Attributes:
        task: A task of section 5.2 of the paper, from the hub or from data_dir; it knows its columns and classes.
        data_dir: Folder with a local copy of the task, files as they are distributed, or with a folder of its name.
        dataset_name: Data set on the Hugging Face hub, instead of files.
        dataset_config_name: Configuration of that data set.
        text_column: Column of the text; default: the task's, else `text`.
        text_pair_column: Column of a second text, where a class belongs to two; default: the task's.
        label_column: Column of the class, or of a list of classes where a text may have several; default: the task's,
            else `label`.
        label_separator: What stands between several classes in a column of strings.
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
        train_file: Files, folders or globs (.csv .tsv .jsonl .parquet) to learn from.
        validation_file: The same to measure on; without any, a part of the training texts is held out.
        validation_fraction: Share of the training texts held out.
        split_seed: Seed of the choice of these texts.
        max_train_samples: Most texts to learn from, drawn at random; default: all.
        max_eval_samples: The same to measure on.
        max_length: Longest input in tokens, longer ones are cut; default: the longest that the model takes.
        cache_dir: Where tokenised text is kept; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
        class_weight: `balanced` weighs each class by how rare it is in the training texts.
        label_smoothing_factor: Share of each target that is spread evenly over all classes.
        num_train_epochs: Passes over the training texts.
        max_steps: Updates instead of passes; default: by num_train_epochs.
        warmup_steps: Updates of linear warm-up, or, below 1, their share of all.
        eval_steps: Updates between evaluations, and checkpoints; default: after each pass.
        early_stopping_patience: Evaluations without a better metric after which training ends; default: it does not.
        metric_for_best_model: What the best checkpoint is best at; default: the task's, or accuracy, or micro_f1 where
            a text may have several classes.
        seeds: Seeds of heads, order and dropout, one training each.
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
    """A classifier, and how it reads.

    Attributes:
        model: Folder or hub id of a classifier.
        max_length: Longest input in tokens; default: that of the fine-tuning.
        stride: Tokens that successive windows over a longer text share; default: longer texts are cut.
        threshold: Least probability of a class that is answered, where a text may have several.
        batch_size: Windows per forward pass.
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
    """What a classifier gets right.

    Attributes:
        validation_file: Files, folders or globs of texts with classes.
        split: Split of a data set of the hub; default: validation, or the task's.
        max_eval_samples: Most texts to measure on, drawn at random; default: all.
        output_dir: New folder for metrics, confusion matrix and the worst mistakes; default: only print.
    """

    validation_file: list[str] | None = None
    split: str | None = None
    max_eval_samples: int | None = None
    output_dir: str | None = None


@dataclass(kw_only=True)
class PredictSettings(ClassifierSettings):
    """The classes of new texts.

    Attributes:
        file: File with texts: a table (.csv .tsv .jsonl .parquet), or .txt with one on each line.
        output: File for the answers, JSON Lines; default: standard output.
        text_column: Column of the text; default: that of the fine-tuning, else `text`.
        text_pair_column: Column of a second text; default: that of the fine-tuning.
        resume: Go on after the last whole line of output.
        overwrite: Start anew in an output that is there.
    """

    file: str
    output: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    resume: bool = False
    overwrite: bool = False
