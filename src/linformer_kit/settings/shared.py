"""Settings that several commands share: of texts, and of what a run leaves."""

from typing import Literal

from linformer_kit.settings.declare import Column, Count, Document, File, Folder, Output, Seed, Share, Texts, settings

TaskName = Literal["sst2", "imdb", "qnli", "qqp"]


@settings
class PairSettings:
    """Columns of texts or of pairs of texts."""

    # Column of the text; default: the task's or that of the fine-tuning, else `text`.
    text_column: Texts[Column | None] = None
    # Column of the second text, where inputs are pairs; default: the task's or that of the fine-tuning.
    text_pair_column: Texts[Column | None] = None


@settings
class LabelledSettings(PairSettings):
    """Labelled texts: one of the paper's tasks, files, or a data set of the hub."""

    # A task of section 5.2 of the paper, from the hub or from data_dir; it sets columns and classes.
    task: Texts[TaskName | None] = None
    # Folder with the task's original files, in it or in a subfolder named after the task.
    data_dir: Texts[Folder | None] = None
    dataset_name: Texts[str | None] = None  # Data set on the Hugging Face hub, instead of files.
    dataset_config_name: Texts[str | None] = None  # Configuration of that data set.
    # Column of the class, or of a list of classes (multi-label); default: the task's or that of the fine-tuning, else
    # `label`.
    label_column: Texts[Column | None] = None
    # Separator of several classes in one string (multi-label); default: the string is one class.
    label_separator: Texts[str | None] = None
    validation_file: Texts[list[File] | None] = None  # Validation files, folders or globs (.csv .tsv .jsonl .parquet).
    max_eval_samples: Texts[Count | None] = None  # Maximum number of validation texts, drawn at random; default: all.


@settings
class DocumentSettings:
    """Documents of files."""

    text_column: Texts[Column] = "text"  # Text column of .jsonl, .csv, .tsv and .parquet files.
    # How .txt files are split into documents; `auto`: `wikitext` if the file starts with a WikiText heading, else
    # `file`.
    document: Texts[Document] = "auto"


@settings
class TrainingTextSettings:
    """Texts of a training, of which a part is held out for validation."""

    # Training files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: the source of the Python
    # standard library.
    train_file: Texts[list[File] | None] = None
    # Validation files, folders or globs; default: a part of the training texts is held out.
    validation_file: Texts[list[File] | None] = None
    validation_fraction: Texts[Share] = 0.05  # Share of the training texts held out for validation.
    # Folder of the cache of texts; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
    cache_dir: Texts[Folder | None] = None


@settings
class CorpusSettings(DocumentSettings, TrainingTextSettings):
    """Documents for training and validation, of files or of the hub."""

    dataset_name: Texts[str | None] = None  # Data set on the Hugging Face hub, instead of train_file.
    dataset_config_name: Texts[str | None] = None  # Configuration of that data set.
    split_seed: Texts[Seed | None] = None  # Seed of the validation split; default: seed.
    # Read and tokenise text during training, without a cache; default: only for hub data.
    streaming: Texts[bool | None] = None


@settings
class ResumeSettings:
    """What happens to the output of an earlier run."""

    resume: Output[bool] = False  # Continue an interrupted run from what it saved; start one if there is none.
    overwrite: Output[bool] = False  # Delete the output of an earlier run and start again.
