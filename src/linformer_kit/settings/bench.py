"""The typed settings of `linformer bench`. Imports nothing heavy, so that `--help` stays instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings import ResizeMode, TaskName

Precision = Literal["float32", "bfloat16", "float16"]
Mode = Literal["forward", "train"]
Baseline = Literal["eager", "full", "roberta"]


@dataclass(kw_only=True)
class BenchSettings:
    """What all measurements have in common: the machine, the width of the encoder, where results go.

    Attributes:
        device: Where to measure: `cpu`, `cuda`, or one of several as `cuda:1`.
        dtype: Number format of weights and activations.
        hidden_size: d_m, the width of the model.
        num_attention_heads: h, heads in a layer; divides hidden_size.
        intermediate_size: Width of the feed-forward layer.
        seed: Seed of weights and tokens, which are random.
        output_dir: New or empty folder for the results; default: a new folder below runs/.
        overwrite: Write over the results in output_dir.
    """

    device: str = "cpu"
    dtype: Precision = "bfloat16"
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    seed: int = 0
    output_dir: str | None = None
    overwrite: bool = False


@dataclass(kw_only=True)
class RateSettings(BenchSettings):
    """What measurements beside the machine's best rates have in common.

    Attributes:
        tokens: Tokens in a batch, which is at least one sequence; default: 4,096 on a CPU, else 65,536.
        square: Rows and columns of the matrices for the best rate; default: 4,096 on a CPU, else 8,192.
        copy_mib: Size of the tensor that is copied, MiB; larger than the caches.
    """

    tokens: int | None = None
    square: int | None = None
    copy_mib: int = 512


@dataclass(kw_only=True)
class EfficiencySettings(RateSettings):
    """Time and memory of Linformer encoders and of Transformers of equal size.

    Attributes:
        mode: A `forward` pass, or forward and backward as in training (`train`).
        lengths: n in tokens; default: 512 to 65,536 in powers of two, in training on a CPU up to 8,192.
        projected_dims: k; pairs with k < n are measured.
        baselines: Transformers to compare with: softmax over a stored n×n matrix (`eager`) and
            scaled_dot_product_attention in Hugging Face's RobertaModel (`roberta`) and in this package (`full`).
        layers: Layers of the encoders; default: on a CPU 2 up to n 8,192 and 1 above, else 12.
        repetitions: Timed runs of each encoder, fewer where they exceed `seconds`.
        seconds: Time for the runs of one encoder at one length; a first run over a third of it is the only one.
        memory: Whether to measure memory, each encoder in a process of its own.
        budget_gib: Memory that the largest batch is to fit in, GiB.
    """

    mode: Mode = "forward"
    lengths: list[int] | None = None
    projected_dims: list[int] = field(default_factory=lambda: [128, 256, 512, 1024, 2048])
    baselines: list[Baseline] = field(default_factory=lambda: ["eager", "full", "roberta"])
    layers: int | None = None
    repetitions: int = 5
    seconds: float = 10.0
    memory: bool = True
    budget_gib: float = 16.0


@dataclass(kw_only=True)
class CeilingSettings(RateSettings):
    """The machine's limits: its best rates, and the time that a layer's own matrix products take alone.

    Attributes:
        lengths: n in tokens.
        projected_dims: k; pairs with k < n are measured.
        repetitions: Runs of each product, of which the fastest counts.
    """

    lengths: list[int] = field(default_factory=lambda: [512, 4096, 16384])
    projected_dims: list[int] = field(default_factory=lambda: [256])
    repetitions: int = 5


@dataclass(kw_only=True)
class LongSettings(BenchSettings):
    """One pass of a Linformer encoder over a very long sequence.

    Attributes:
        n: Tokens of the long sequence.
        reference_length: Tokens of the sequence whose time per token it is compared with.
        projected_dim: k.
        layers: Layers of the encoder.
        vocab_size: Tokens in the vocabulary.
        repetitions: Timed runs over the reference; the long sequence runs once.
    """

    n: int = 1_048_576
    reference_length: int = 4096
    projected_dim: int = 256
    layers: int = 12
    vocab_size: int = 50265
    repetitions: int = 5


@dataclass(kw_only=True)
class SystemsSettings(BenchSettings):
    """One layer of each kind of encoder, timed against the length of the sequence.

    Attributes:
        systems: Which to time; default: all. Those that are not installed are named in the results.
        lengths: n in tokens.
        projected_dims: k of the Linformers; each is run with every k that is below n.
        tokens: Tokens in a batch: tokens / n sequences, at least one; default: 4,096 on a CPU, else 65,536.
        repetitions: Timed runs of each layer at each length, the layers in turn.
        seconds: Time for all runs of one layer at one length; when it is used up, fewer runs have to do.
        max_seconds: A layer that takes longer than this is not run at longer lengths.
    """

    systems: list[str] | None = None
    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384])
    projected_dims: list[int] = field(default_factory=lambda: [256])
    tokens: int | None = None
    repetitions: int = 5
    seconds: float = 10.0
    max_seconds: float = 10.0


@dataclass(kw_only=True)
class Table2Settings:
    """Fine-tuning of several encoders on the tasks of section 5.2 of the paper.

    Attributes:
        models: Folders or hub ids of encoders.
        names: What they are called in the table; default: the last part of each.
        tasks: Which tasks.
        data_dir: Folder with local copies of the tasks, each in a folder of its name; default: the hub.
        seeds: Seeds of each model on each task.
        one_seed: Tasks that are trained with the first seed alone.
        learning_rates: Of several each model takes the best for each task, with the first seed.
        projection_learning_rate_factor: Learning rate of E and F, as a multiple of these.
        max_train_samples: Most texts to learn from; default: all.
        max_eval_samples: Most texts to measure on; default: all.
        max_length: Longest input in tokens; default: the longest that each model takes.
        cache_dir: Where tokenised text is kept; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
        resize_to: Longest sequence that all models, of this package, are resized to before; default: their own.
        resize_mode: How: E, F and positions stretched (`interpolate`) or repeated (`extend`).
        num_train_epochs: Passes over the training texts.
        per_device_train_batch_size: Texts per device and forward pass.
        per_device_eval_batch_size: The same in evaluation.
        gradient_accumulation_steps: Forward passes per update.
        warmup_steps: Updates of linear warm-up, or, below 1, their share of all.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
        output_dir: New folder for results and classifiers; default: a new folder below runs/.
        resume: Continue in output_dir: what is done is kept.
    """

    models: list[str]
    names: list[str] | None = None
    tasks: list[str] = field(default_factory=lambda: ["sst2", "imdb", "qnli", "qqp"])
    data_dir: str | None = None
    seeds: list[int] = field(default_factory=lambda: [0])
    one_seed: list[str] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=lambda: [5e-5])
    projection_learning_rate_factor: float = 1.0
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
    bf16: Literal["auto", "true", "false"] = "auto"
    output_dir: str | None = None
    resume: bool = False


@dataclass(kw_only=True)
class EmbeddingsSettings:
    """Sentence embedders beside the first of them.

    Attributes:
        models: Folders or hub ids of encoders whose mean hidden state is the embedding; the first one is what the
            others are measured against.
        names: What they are called in the results; default: the names of their folders.
        text: Files, folders or globs of long texts, for the cosine to the first model's embeddings; default: none.
        text_column: Column that holds the text of .jsonl, .csv, .tsv and .parquet.
        samples: How many of these texts.
        cosine_lengths: Tokens that they are cut to.
        tasks: Tasks of Table 2 for a logistic regression on the embeddings.
        data_dir: Folder with a folder for each task.
        max_train_samples: Most texts of a task to learn from.
        max_eval_samples: Most texts of a task to measure on.
        lengths: n of the measurements of time and memory; models are made longer for them, others are not.
        tokens: Tokens in a batch there.
        repetitions: Runs of each model at each n.
        memory: Whether to measure memory, each model in a process of its own.
        batch_size: Texts per forward pass.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    models: list[str]
    names: list[str] | None = None
    text: list[str] | None = None
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
    bf16: Literal["auto", "true", "false"] = "auto"
    output_dir: str | None = None


@dataclass(kw_only=True)
class FamiliesSettings:
    """Which encoders of transformers can be made linear.

    Attributes:
        seed: Seed of weights and inputs.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    seed: int = 0
    output_dir: str | None = None
