"""Settings that several commands have: texts, resumption, where a model runs, and classifiers."""

from linformer_cli.settings.declare import (
    Argument,
    Count,
    Document,
    File,
    Machine,
    ModelName,
    Output,
    Precision,
    Probability,
    Seed,
    Share,
    Texts,
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
