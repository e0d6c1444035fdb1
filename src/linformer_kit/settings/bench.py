"""Settings of measurements of quality."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings import ResizeMode, TaskName


@dataclass(kw_only=True)
class Table2Settings:
    """Fine-tuning of several encoders on the tasks of section 5.2 of the paper.

    Attributes:
        models: Folders or hub ids of encoders.
        names: Names of the models in the table; default: the last part of each folder or hub id.
        tasks: Tasks to train on.
        data_dir: Folder with local copies of the tasks, each in a subfolder named after it; default: the hub.
        seeds: Seeds of each model on each task.
        one_seed: Tasks to train with the first seed only.
        learning_rates: Learning rates to try with the first seed; the best is used, for each model and task.
        projection_learning_rate_factors: Learning rates of E and F, or of W_P with `projection: dynamic`, as multiples
            of the learning rate, to try like these; models without such matrices are trained once.
        tuning_samples: Maximum number of training texts, and of validation texts, with which rates are compared, for
            tasks with more training texts; default: as max_train_samples and max_eval_samples.
        max_train_samples: Maximum number of training texts; default: all.
        max_eval_samples: Maximum number of validation texts; default: all.
        max_length: Maximum input length in tokens; default: the maximum of each model.
        cache_dir: Folder of the cache of tokenised text; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
        resize_to: Resize all models, which must be of this package, to this maximum length; default: no resizing.
        resize_mode: How E, F and positions are resized: interpolated (`interpolate`) or repeated (`extend`).
        num_train_epochs: Epochs: passes over the training texts.
        per_device_train_batch_size: Sequences per device and forward pass.
        per_device_eval_batch_size: Sequences per device and forward pass in evaluation.
        gradient_accumulation_steps: Forward passes per update.
        warmup_steps: Updates of linear warm-up; below 1: a share of all updates.
        processes: Number of parallel trainings, each on its share of the processor's cores.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
        output_dir: New folder for results and classifiers; default: a new folder below runs/.
        resume: Resume in output_dir; completed trainings are kept.
    """

    models: list[str]
    names: list[str] | None = None
    tasks: list[str] = field(default_factory=lambda: ["sst2", "imdb", "qnli", "qqp"])
    data_dir: str | None = None
    seeds: list[int] = field(default_factory=lambda: [0])
    one_seed: list[str] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=lambda: [5e-5])
    projection_learning_rate_factors: list[float] = field(default_factory=lambda: [0.1])
    tuning_samples: int | None = None
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_length: int | None = None
    cache_dir: str | None = None
    resize_to: int | None = None
    resize_mode: ResizeMode = "interpolate"
    num_train_epochs: float = 3.0
    per_device_train_batch_size: int = 16
    per_device_eval_batch_size: int = 32
    gradient_accumulation_steps: int = 1
    warmup_steps: float = 0.06
    processes: int = 1
    bf16: Literal["auto", "true", "false"] = "auto"
    output_dir: str | None = None
    resume: bool = False


@dataclass(kw_only=True)
class EmbeddingsSettings:
    """Sentence embedders compared with the first of them.

    Attributes:
        models: Folders or hub ids of encoders whose mean hidden state is the embedding; the others are compared with
            the first.
        names: Names of the models in the results; default: the names of their folders.
        text_file: Files, folders or globs of long texts, for the cosine to the first model's embeddings; default: none.
        text_column: Text column of .jsonl, .csv, .tsv and .parquet files.
        samples: Number of texts for the cosine.
        cosine_lengths: Lengths in tokens to which these texts are truncated.
        tasks: Tasks of Table 2 for a logistic regression on the embeddings.
        data_dir: Folder with a subfolder for each task.
        max_train_samples: Maximum number of training texts per task.
        max_eval_samples: Maximum number of validation texts per task.
        lengths: Values of n for time and memory; models with fewer positions are resized for this measurement.
        tokens: Number of tokens per batch for time and memory.
        repetitions: Number of timed runs of each model at each n.
        memory: Measure memory too, each model in a separate process.
        batch_size: Texts per forward pass.
        dtype: Data type of the weights, as saved with `auto`; `bfloat16` computes everything in it, faster than mixed
            precision and less exact.
        bf16: Mixed precision of float32 weights; `auto` where the processor has bf16 instructions.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    models: list[str]
    names: list[str] | None = None
    text_file: list[str] | None = None
    text_column: str = "text"
    samples: int = 200
    cosine_lengths: list[int] = field(default_factory=lambda: [32, 128, 256, 512])
    tasks: list[TaskName] = field(default_factory=list)
    data_dir: str | None = None
    max_train_samples: int = 5000
    max_eval_samples: int = 5000
    lengths: list[int] = field(default_factory=lambda: [512, 4096])
    tokens: int = 4096
    repetitions: int = 5
    memory: bool = True
    batch_size: int = 16
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    bf16: Literal["auto", "true", "false"] = "auto"
    output_dir: str | None = None
