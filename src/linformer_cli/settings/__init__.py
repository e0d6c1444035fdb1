"""Settings of the commands, each with its type, limits, group in `--help`, default and docstring (see `declare`).

Imports no torch or transformers, so that `linformer --help` starts fast. Settings without a default come from the
recipe.
"""

from dataclasses import field
from typing import ClassVar, Literal

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import (
    Adapter,
    Amount,
    Argument,
    Count,
    CountOrZero,
    Counts,
    Document,
    Encoder,
    Evaluation,
    File,
    Folder,
    Length,
    Linear,
    Machine,
    Measurement,
    Model,
    ModelName,
    Output,
    Positive,
    Share,
    Texts,
    Tokens,
    Training,
    changed,
    command,
    settings,
)
from linformer_cli.settings.model import (
    IGNORED_LABEL,
    REGISTERED_PROJECTIONS,
    BiasOrder,
    ClassifierPooling,
    LinearizeSettings,
    ModelSettings,
    ProjectionName,
    ResizeMode,
    Sharing,
    ShorterInput,
    SlotSettings,
)
from linformer_cli.settings.recorded import is_local_path, model_label, names_only, without_local_paths
from linformer_cli.settings.shared import (
    CachedTextSettings,
    ClassifierSettings,
    CorpusSettings,
    LabelledSettings,
    OneModelTrainingSettings,
    PairSettings,
    ResumeSettings,
    TrainingSettings,
    UpdateSettings,
    WeightSettings,
)

USE, TRAIN, CONVERT, MEASURE = TOPICS = ("Use a model", "Train", "Convert", "Measure")


@command("pretrain", TRAIN, "training.pretrain", "--train_file notes/ corpus.jsonl --output_dir my-model", "tiny")
class PretrainSettings(CorpusSettings, UpdateSettings, OneModelTrainingSettings):
    """Pretrain a masked or causal language model on text.

    For a new encoder; at n 2,048 it learns sooner than a Transformer.
    """

    given: ClassVar[frozenset[str]] = frozenset()
    """names of the settings of the command line and --config files"""
    model: ModelSettings
    """The architecture: its settings are --model.NAME."""
    from_model: Model[ModelName | None] = None
    """Folder or hub id of a language model of this package to train further, with its architecture and tokenizer
    instead of those of the recipe; default: a new model."""
    tokenizer: Model[ModelName | None] = None
    """Its folder or hub id; default: a byte-level BPE trained on the corpus."""
    mlm_probability: Training[Share] = 0.15
    """Share of tokens to predict: 80 % become <mask>, 10 % random ones; a causal model predicts every token."""
    load_best_model_at_end: Evaluation[bool] = False
    """Keep the checkpoint with the lowest validation loss and load it at the end; needs save_steps equal to
    eval_steps."""


@command("finetune", TRAIN, "training.finetune", "my-model --train_file reviews.csv")
class FinetuneSettings(LabelledSettings, OneModelTrainingSettings):
    """Fine-tune an encoder to classify texts (Table 2).

    Where words alone do not tell the classes; it compares both.
    """

    model: Argument[ModelName]
    """Folder or hub id of an encoder of this package, or of transformers with a classifier."""
    train_file: Texts[list[File] | None] = None
    """Files, folders or globs (.csv .tsv .jsonl .parquet)."""
    validation_file: Texts[list[File] | None] = None
    """Files or folders; default: a part of the training texts."""
    validation_fraction: Texts[Share] = 0.1
    """Share of the training texts held out for validation."""
    max_train_samples: Texts[Count | None] = None
    """Maximum number of training texts, drawn at random; default: all."""
    max_eval_samples: Texts[Count | None] = None
    """Maximum number of validation texts, drawn at random; default: all."""
    max_length: Texts[int | None] = None
    """Tokens at which longer texts are truncated; default: the model's maximum."""
    pieces: Texts[bool] = False
    """Cut longer texts into pieces of max_length tokens instead, and average what the last layer reads of each; the
    classifier keeps this for `predict` and `evaluate`."""
    per_device_train_batch_size: Training[Count] = 8
    learning_rate: Training[Amount] = 5e-5
    projection_learning_rate_factor: Training[Amount] = 0.1
    num_train_epochs: Training[Positive] = 3.0
    """Epochs: passes over the training texts."""
    max_steps: Training[Count | None] = None
    """Number of updates; overrides num_train_epochs."""
    head_start: Training[Literal["regression", "random"]] = "regression"
    """Where a new head starts: at a logistic regression on the encoder's vectors, pooled as its folder says, else their
    mean (`regression`), or at random, in the form that its family has (`random`)."""
    class_weights: Training[Literal["balanced"] | None] = None
    """Weights of classes in the loss: `balanced`: by the inverse of their numbers of training texts; default: all
    equal."""
    warmup_steps: Training[Amount] = 0.06
    """Updates of linear warm-up; below 1: a share of all updates."""
    eval_steps: Evaluation[Count | None] = None
    """Updates between evaluations and checkpoints; default: once per epoch."""
    early_stopping_patience: Evaluation[Count | None] = None
    """Stop after so many worse evaluations; default: never."""
    metric_for_best_model: Evaluation[str | None] = None
    """Metric that selects the best checkpoint; default: accuracy, macro_f1 if a class has four times as many training
    texts as another, or micro_f1 for multi-label texts."""
    save_total_limit: Evaluation[Count | None] = 1

    def __post_init__(self) -> None:
        if self.pieces and self.fully_shard:  # whose processes must make as many forward passes
            raise InputError("pieces: expected a model that is whole in each process, got fully_shard")


@command("distill", TRAIN, "training.distill", "my-bert --train_file articles/ --output_dir linear-bert")
class DistillSettings(LinearizeSettings, CachedTextSettings, UpdateSettings):
    """Linearise an encoder and distil the original into it.

    Where an untrained linear encoder is too far from the original.
    """

    model: Argument[ModelName]
    """The teacher: folder or hub id of an encoder, masked language model or classifier."""
    adapter_rank: Adapter[Count | None] = None
    """Rank r of a LoRA adapter of the layers' linear maps, such as 16, which is trained with E and F instead of all
    weights. It is saved in `adapter/` in PEFT's format, in addition to the model; default: no adapter."""
    text_pair_column: Texts[str | None] = None
    """Column of the second text, where inputs are pairs."""
    packing: Texts[bool | None] = None
    """Cut documents into passages of whole sentences: half of the updates have n tokens, the others random lengths;
    false: each text is one input; default: false for text classifiers and pairs, else true."""
    max_eval_samples: Texts[Count] = 64
    """Maximum number of validation inputs."""
    per_device_train_batch_size: Training[Count] = 8
    learning_rate: Training[Amount] = 3e-4
    weight_decay: Training[Amount] = 0.0
    max_steps: Training[Count] = 1200
    layerwise_steps: Training[int | None] = None
    """Updates in which each layer learns alone; default: max_steps / 4."""
    joint_learning_rate_factor: Training[Positive] = 0.2
    """Rate of the second phase, of all layers together, as a multiple of learning_rate; each phase has a warm-up."""
    warmup_steps: Training[CountOrZero] = 50
    eval_steps: Evaluation[Count] = 200
    save_steps: Evaluation[Count] = 200


@command("predict", USE, "inference.predict", "my-classifier new.csv --out answers.jsonl")
class PredictSettings(PairSettings, ClassifierSettings, ResumeSettings):
    """Classify the texts of a file.

    With a classifier of `finetune` or of the hub.
    """

    file: Argument[list[File]]
    """Files, folders, globs, pipes: .csv .tsv .jsonl .parquet, or .txt with a text per line."""
    out: Output[File | None] = None
    """File for the predictions, JSON Lines; default: standard output."""


@command("evaluate", USE, "inference.evaluate", "my-classifier more.csv")
class EvaluateSettings(LabelledSettings, ClassifierSettings):
    """Measure a classifier on labelled texts.

    On texts of your own; beside words alone with --train_file.
    """

    validation_file: Argument[list[File] | None] = None
    """Files, folders or globs (.csv .tsv .jsonl .parquet)."""
    train_file: Texts[list[File] | None] = None
    """Files that it was trained on, of which a regression on words learns, to compare it with; default: no
    comparison."""
    split: Texts[str | None] = None
    """Split of a data set of the hub; default: validation."""
    output_dir: Output[Folder | None] = None
    """New folder for metrics and the worst mistakes; default: only print."""


@command("embed", USE, "inference.embed", "my-encoder articles.jsonl --out vectors.npy")
class EmbedSettings(ResumeSettings, WeightSettings):
    """Embed the texts of a file.

    For search; averages of --pieces read texts of any length.
    """

    model: Argument[ModelName]
    """Folder or hub id of an encoder; mean-pooled without files of sentence-transformers."""
    file: Argument[list[File]]
    """Files, folders or globs, in their order: .csv .tsv .jsonl .parquet, or .txt .py .md."""
    out: Output[File]
    """File for the embeddings, .npy: float32 of shape texts × width."""
    text_column: Texts[str | None] = None
    """Text column of tables; default: text."""
    document: Texts[Document] = "file"
    """What a text of .txt files is: the whole file, or a line; blank ones too."""
    max_length: Texts[Count | None] = None
    """Tokens of an input, at which longer texts are truncated, or divided; default: as in the model's files."""
    pieces: Texts[bool] = False
    """Embed pieces of max_length tokens, and write their mean for each text."""
    batch_size: Machine[Count] = 8
    """Texts per forward pass."""

    def __post_init__(self) -> None:
        if not self.out.endswith(".npy"):
            raise InputError(f"out: expected a file whose name ends in .npy, got {self.out}")


@command("fill-mask", USE, "inference.fill_mask", "my-model 'def __init__(<mask>, name):' --top_k 3")
class FillMaskSettings(WeightSettings):
    """Predict the <mask> tokens of a text.

    A look at what a masked language model has learned.
    """

    model: Argument[ModelName]
    """Folder or hub id of a masked language model."""
    text: Argument[str]
    """Text with one or more <mask> tokens."""
    top_k: Output[Count] = 5
    """Number of predictions per <mask> token."""


@command("linearize", CONVERT, "interop.convert", "BAAI/bge-small-en-v1.5 long --max_position_embeddings 4096")
class LinearizeCommandSettings(LinearizeSettings):
    """Make any encoder linear, and longer, without training.

    For n of 1,000 and more; in search `embed --pieces` is as good.
    """

    model: Argument[ModelName]
    """Folder or hub id of an encoder that uses transformers' attention interface."""
    out: Argument[Folder]
    """New folder for the linear encoder and its tokenizer."""
    adapter: Adapter[Folder | None] = None
    """Adapter to merge (name, folder, hub id), with all its settings."""


@command("resize", CONVERT, "interop.convert", "my-model my-long-model --max_position_embeddings 1024")
class ResizeSettings:
    """Give a linear model another longest text.

    To pretrain on short texts first, or to read more of a text.
    """

    model: Argument[ModelName]
    """Folder or hub id of a model of this package, or of a linear encoder."""
    out: Argument[Folder]
    """New folder for the model and its tokenizer."""
    max_position_embeddings: Linear[Length]
    """n, the new maximum length in tokens."""
    resize_mode: Linear[ResizeMode] = "extend"
    """How positions, and E and F, are resized: repeated, so that texts of the old length keep their outputs, or
    interpolated."""


@command("adapters", CONVERT, "training.adapter")
class AdaptersSettings:
    """List the adapters that ship with the package.

    For `linearize --adapter`: nearer to the original's vectors.
    """

    card: Adapter[Folder | None] = None
    """Name of an adapter whose card to print, or its folder; default: list all."""


@command("export", CONVERT, "export.command", "my-classifier served --format openvino", extra="export")
class ExportSettings:
    """Export a model to ONNX or OpenVINO, and check it against PyTorch.

    To serve on CPUs without PyTorch; ModernBERT's windows gain most.
    """

    model: Argument[ModelName]
    """Folder or hub id of an encoder of this package or of transformers."""
    out: Argument[Folder]
    """New folder for the exported model and its tokenizer."""
    format: Output[Literal["onnx", "openvino"]] = "onnx"
    """Of the file: ONNX, or OpenVINO's, for CPUs."""
    dtype: Machine[Literal["float32", "bfloat16", "int8"]] = "float32"
    """Number format; bfloat16 is for OpenVINO only. `int8` quantises linear layers: weights by channel, activations at
    run time, in OpenVINO in parts of each token, in ONNX Runtime the whole batch alike."""

    def __post_init__(self) -> None:
        if self.format == "onnx" and self.dtype == "bfloat16":
            raise InputError("dtype: expected float32 or int8 with format onnx, got bfloat16")


@settings
class CostSettings:
    """Encoders with random weights, whose time and memory are measured."""

    hidden_size: Encoder[Count] = 768
    """d_m, the width of the model."""
    num_attention_heads: Encoder[Count] = 12
    """h, the number of heads per layer; must divide hidden_size."""
    intermediate_size: Encoder[Count] = 3072
    """Width of the feed-forward layer."""
    device: Machine[str] = "cpu"
    """Device to measure: `cpu`, `cuda` or, with an index, `cuda:1`."""
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    """Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it."""
    output_dir: Output[Folder | None] = None
    """New folder for the results; default: one in `runs/`."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            expected = f"a divisor of hidden_size {self.hidden_size}"
            raise InputError(f"num_attention_heads: expected {expected}, got {self.num_attention_heads}")


@command("bench", MEASURE, "analysis.bench", "--lengths 512 2048 --device cuda")
class BenchSettings(CostSettings):
    """Compare time and memory with a Transformer on this machine.

    To see from which n on a Linformer is faster here.
    """

    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    """Values of n in tokens."""
    projected_dims: Measurement[Counts] = field(default_factory=lambda: [128, 256])
    """Values of k less than n."""
    tokens: Measurement[Count | None] = None
    """Tokens per batch, or one sequence; default: 4,096 on a CPU, else 65,536."""
    num_hidden_layers: Encoder[Count] = 2
    """Number of layers."""
