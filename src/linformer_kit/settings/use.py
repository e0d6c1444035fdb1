"""Settings of the commands that use, convert, export or analyse a model."""

from dataclasses import field
from typing import Literal

from linformer_kit.settings.declare import (
    Adapter,
    AdapterName,
    Argument,
    Auto,
    ChoiceOfK,
    Column,
    Count,
    Document,
    Encoder,
    Export,
    File,
    Folder,
    Linear,
    Machine,
    Measurement,
    Model,
    ModelName,
    Output,
    Prediction,
    Texts,
    settings,
)
from linformer_kit.settings.model import Attention, PretrainedSlotSettings
from linformer_kit.settings.shared import DocumentSettings, LabelledSettings, PairSettings, ResumeSettings


@settings
class ClassifierSettings:
    """A classifier and its inputs."""

    model: Argument[ModelName]  # Folder or hub id of a classifier.
    max_length: Texts[int | None] = None  # Maximum input length in tokens; default: that of the fine-tuning.
    # Split longer texts into windows that overlap by this number of tokens, and average their probabilities; default:
    # longer texts are truncated.
    stride: Texts[int | None] = None
    threshold: Prediction[float] = 0.5  # Minimum probability to predict a class (multi-label only).
    batch_size: Machine[Count] = 32  # Texts, or windows of longer texts, per forward pass.
    bf16: Machine[Auto] = "auto"  # Mixed precision; `auto` where the processor has bf16 instructions.


@settings
class EvaluateSettings(LabelledSettings, ClassifierSettings):
    """Measure a classifier on labelled texts."""

    split: Texts[str | None] = None  # Split of a data set of the hub; default: the task's, else validation.
    # New folder for metrics, confusion matrix and the worst mistakes; default: only print.
    output_dir: Output[Folder | None] = None


@settings
class PredictSettings(PairSettings, ClassifierSettings, ResumeSettings):
    """Classify the texts of a file."""

    file: Argument[
        File
    ]  # File with texts: a table (.csv .tsv .jsonl .parquet), or .txt or a pipe with one text per line.
    output: Output[File | None] = None  # File for the predictions, JSON Lines; default: standard output.


@settings
class EmbedSettings(ResumeSettings):
    """Embed the texts of a file."""

    # Folder or hub id of an encoder. Its files of sentence-transformers say what prompt, pooling and normalisation are;
    # a plain encoder gets mean pooling.
    model: Argument[ModelName]
    file: Argument[File]  # File, folder or glob with the texts: tables (.csv .tsv .jsonl .parquet), or .txt .py .md.
    output: Output[File]  # File for the embeddings, .npy: float32 of shape texts × width.
    text_column: Texts[Column | None] = None  # Text column of tables; default: text.
    # How .txt files are split into texts; `auto`: `wikitext` if the file starts with a WikiText heading, else `file`.
    document: Texts[Document] = "auto"
    # Maximum input length in tokens, longer texts are truncated; default: the limit of the model's files.
    max_length: Texts[Count | None] = None
    # Write an embedding for each piece of this many tokens, pooled from one pass over the whole text (late chunking),
    # and the pieces' characters to OUTPUT.pieces.jsonl; default: an embedding for each text.
    chunk_tokens: Texts[Count | None] = None
    # Embed pieces of max_length tokens separately, and write the mean for each text, which is read whole.
    pieces: Texts[bool] = False
    batch_size: Machine[Count] = 8  # Texts per forward pass.
    # Data type of the weights, as saved with `auto`; `bfloat16` computes everything in it, faster than mixed precision
    # and less exact.
    dtype: Machine[Literal["auto", "float32", "bfloat16"]] = "auto"
    # Mixed precision of float32 weights, faster and less exact; `auto` where the processor has bf16 instructions.
    bf16: Machine[Auto] = "false"


@settings
class FillMaskSettings:
    """Predict the <mask> tokens of a text."""

    model: Argument[ModelName]  # Folder or hub id of a masked language model.
    text: Argument[str]  # Text with one or more <mask> tokens.
    top_k: Prediction[Count] = 5  # Number of predictions per <mask> token.
    json: Output[bool] = False  # Print JSON instead of a table.


@settings
class AdaptersSettings:
    """List the adapters that ship with the package."""

    card: Adapter[Folder | None] = None  # Name of an adapter whose card to print, or its folder; default: list all.


@settings
class ConvertSettings(PretrainedSlotSettings):
    """Convert a checkpoint to a Linformer, or linearise it in place."""

    # Folder or hub id of a RoBERTa or BERT (or of one linearised with in_place), or of a model of this package with
    # full attention, or a fairseq Linformer or RoBERTa file (.pt); with in_place: any encoder that uses transformers'
    # attention interface.
    source: Argument[ModelName]
    out: Argument[Folder]  # New folder for the Linformer and its tokenizer.
    # Keep the model's class and replace only its attention; false: make a model of this package, which is faster.
    in_place: Model[bool] = False
    # With in_place: name, folder or hub id of an adapter of `linformer distill --adapter` to merge; it determines all
    # settings of linear attention.
    adapter: Adapter[AdapterName | None] = None
    attention: Linear[Attention | None] = None  # `full` keeps full attention; default: linformer.
    # Heads per layer, where a fairseq file does not contain their number.
    num_attention_heads: Model[int | None] = None
    # Name of a classification head of the fairseq file to convert instead of the masked language model's.
    classification_head: Model[str | None] = None
    tokenizer: Model[ModelName | None] = None  # Folder or hub id of the tokenizer, if the source has none.


@settings
class ExportSettings(PairSettings):
    """Export a model to ONNX, and check it against PyTorch."""

    # Folder or hub id of an encoder of this package or of transformers, with or without a head.
    model: Argument[ModelName]
    out: Argument[Folder]  # New folder for the exported model and its tokenizer.
    int8: Export[bool] = False  # Quantise linear layers to int8: weights statically, activations dynamically.
    # File of texts (.txt .csv .tsv .jsonl .parquet) on which the loss by int8 is measured: labelled for a classifier,
    # any for an encoder without a head.
    validation_file: Texts[File | None] = None
    label_column: Texts[Column | None] = None  # Column of the class; default: that of the fine-tuning, else `label`.
    max_eval_samples: Texts[Count | None] = None  # Maximum number of texts to measure on; default: all.
    # Measure the time of PyTorch and of the exported model, at 512 tokens and at the maximum length.
    benchmark: Measurement[bool] = False


@settings
class BenchSettings:
    """Compare time and memory with a Transformer on this machine."""

    lengths: Measurement[list[int]] = field(default_factory=lambda: [512, 1024, 2048, 4096])  # Values of n in tokens.
    # Values of k; all pairs with k < n are measured.
    projected_dims: Measurement[list[int]] = field(default_factory=lambda: [128, 256])
    # Number of tokens per batch, at least one sequence; default: 4,096 on a CPU, else 65,536.
    tokens: Measurement[Count | None] = None
    repetitions: Measurement[Count] = 5  # Number of timed runs of each encoder; fewer if they exceed 10 seconds.
    num_hidden_layers: Encoder[int] = 2  # Number of layers.
    hidden_size: Encoder[int] = 768  # d_m, the width of the model.
    num_attention_heads: Encoder[int] = 12  # h, the number of heads per layer; must divide hidden_size.
    intermediate_size: Encoder[int] = 3072  # Width of the feed-forward layer.
    device: Machine[str] = "cpu"  # Device to measure: `cpu`, `cuda` or, with an index, `cuda:1`.
    # Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it.
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    output_dir: Output[Folder | None] = None  # New or empty folder for the results; default: a new folder below runs/.


@settings
class InspectSettings:
    """Plot which slots a model's heads attend to, and its E and F."""

    model: Argument[ModelName]  # Folder or hub id of a Linformer.
    output_dir: Argument[Folder]  # New folder for figures and numbers.
    text: Texts[str | None] = None  # Text to run the model on; default: the source of Python's argparse.
    text_file: Texts[File | None] = None  # File with the text, UTF-8.
    max_tokens: Texts[Count | None] = None  # Maximum number of tokens of the text to use; default: the model's maximum.
    layers: Measurement[list[int] | None] = None  # Layers to plot, counted from 0; default: up to four, evenly spaced.
    heads: Measurement[list[int] | None] = None  # Heads to plot, counted from 0; default: up to four, evenly spaced.


@settings
class SpectrumSettings(DocumentSettings):
    """Measure the singular values of attention (Fig 1); choose k."""

    model: Argument[ModelName]  # Folder or hub id of an encoder; of a linear one, the n×k weights are measured.
    # Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: the source of the Python standard
    # library.
    text_file: Texts[list[File] | None] = None
    seq_len: Texts[int | None] = None  # n, tokens per sequence; default: 512, or the model's maximum.
    samples: Texts[Count] = 100  # Number of sequences, taken from all files in turn.
    packing: Texts[bool] = True  # Join texts and cut them into sequences of n tokens; false: each text is one sequence.
    # Number of singular values whose cumulative share the heat map shows; default: a quarter of n, 128 of 512 as in the
    # paper.
    at: Measurement[int | None] = None
    # Choose k for each layer, and write it to `projected_dims.yaml` for `linformer pretrain --config`.
    choose: ChoiceOfK[bool] = False
    # Choose the smallest k that keeps this share of the sum of the singular values in each layer; default: 0.9, without
    # a budget.
    energy: ChoiceOfK[float | None] = None
    # Total number of slots of all heads and layers, instead of energy, for the most energy in the layer that has least.
    budget: ChoiceOfK[int | None] = None
    output_dir: Output[Folder | None] = None  # New folder for the results; default: a new folder below runs/.
