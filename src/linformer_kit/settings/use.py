"""Settings of the commands that use, convert, export or analyse a model."""

from dataclasses import field
from typing import Literal

from linformer_kit.settings.declare import (
    Adapter,
    AdapterName,
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

    model: Model[ModelName]
    max_length: Texts[int | None] = None
    stride: Texts[int | None] = None
    threshold: Prediction[float] = 0.5
    batch_size: Machine[Count] = 32
    bf16: Machine[Auto] = "auto"


@settings
class EvaluateSettings(LabelledSettings, ClassifierSettings):
    """Evaluation of a classifier on labelled texts.

    Attributes:
        split: Split of a data set of the hub; default: the task's, else validation.
        output_dir: New folder for metrics, confusion matrix and the worst mistakes; default: only print.
    """

    split: Texts[str | None] = None
    output_dir: Output[Folder | None] = None


@settings
class PredictSettings(PairSettings, ClassifierSettings, ResumeSettings):
    """Prediction of the classes of new texts.

    Attributes:
        file: File with texts: a table (.csv .tsv .jsonl .parquet), or .txt or a pipe with one text per line.
        output: File for the predictions, JSON Lines; default: standard output.
    """

    file: Texts[File]
    output: Output[File | None] = None


@settings
class EmbedSettings(ResumeSettings):
    """Embeddings of the texts of files.

    Attributes:
        model: Folder or hub id of an encoder. Its files of sentence-transformers say what prompt, pooling and
            normalisation are; a plain encoder gets mean pooling.
        file: File, folder or glob with the texts: tables (.csv .tsv .jsonl .parquet), or .txt .py .md.
        output: File for the embeddings, .npy: float32 of shape texts × width.
        text_column: Text column of tables; default: text.
        document: How .txt files are split into texts; `auto`: `wikitext` if the file starts with a WikiText heading,
            else `file`.
        max_length: Maximum input length in tokens, longer texts are truncated; default: the limit of the model's files.
        chunk_tokens: Write an embedding for each piece of this many tokens, pooled from one pass over the whole text
            (late chunking), and the pieces' characters to OUTPUT.pieces.jsonl; default: an embedding for each text.
        pieces: Embed pieces of max_length tokens separately, and write the mean for each text, which is read whole.
        batch_size: Texts per forward pass.
        dtype: Data type of the weights, as saved with `auto`; `bfloat16` computes everything in it, faster than mixed
            precision and less exact.
        bf16: Mixed precision of float32 weights, faster and less exact; `auto` where the processor has bf16
            instructions.
    """

    model: Model[ModelName]
    file: Texts[File]
    output: Output[File]
    text_column: Texts[Column | None] = None
    document: Texts[Document] = "auto"
    max_length: Texts[Count | None] = None
    chunk_tokens: Texts[Count | None] = None
    pieces: Texts[bool] = False
    batch_size: Machine[Count] = 8
    dtype: Machine[Literal["auto", "float32", "bfloat16"]] = "auto"
    bf16: Machine[Auto] = "false"


@settings
class FillMaskSettings:
    """Predictions for the <mask> tokens of a text.

    Attributes:
        model: Folder or hub id of a masked language model.
        text: Text with one or more <mask> tokens.
        top_k: Number of predictions per <mask> token.
        json: Print JSON instead of a table.
    """

    model: Model[ModelName]
    text: Texts[str]
    top_k: Prediction[Count] = 5
    json: Output[bool] = False


@settings
class AdaptersSettings:
    """The adapters that ship with the package.

    Attributes:
        card: Name of an adapter whose card to print, or its folder; default: list all.
    """

    card: Adapter[Folder | None] = None


@settings
class ConvertSettings(PretrainedSlotSettings):
    """Conversion of a checkpoint to a Linformer; a fairseq file determines its own slots and attention.

    Attributes:
        source: Folder or hub id of a RoBERTa or BERT (or of one linearised with in_place), or of a model of this
            package with full attention, or a fairseq Linformer or RoBERTa file (.pt); with in_place: any encoder that
            uses transformers' attention interface.
        out: New folder for the Linformer and its tokenizer.
        in_place: Keep the model's class and replace only its attention; false: make a model of this package, which is
            faster.
        adapter: With in_place: name, folder or hub id of an adapter of `linformer distill --adapter` to merge; it
            determines all settings of linear attention.
        attention: `full` keeps full attention; default: linformer.
        num_attention_heads: Heads per layer, where a fairseq file does not contain their number.
        classification_head: Name of a classification head of the fairseq file to convert instead of the masked language
            model's.
        tokenizer: Folder or hub id of the tokenizer, if the source has none.
    """

    source: Model[ModelName]
    out: Output[Folder]
    in_place: Model[bool] = False
    adapter: Adapter[AdapterName | None] = None
    attention: Linear[Attention | None] = None
    num_attention_heads: Model[int | None] = None
    classification_head: Model[str | None] = None
    tokenizer: Model[ModelName | None] = None


@settings
class ExportSettings(PairSettings):
    """Export of a model for deployment.

    Attributes:
        model: Folder or hub id of an encoder of this package or of transformers, with or without a head.
        out: New folder for the exported model and its tokenizer.
        int8: Quantise linear layers to int8: weights statically, activations dynamically.
        validation_file: File of texts (.txt .csv .tsv .jsonl .parquet) on which the loss by int8 is measured: labelled
            for a classifier, any for an encoder without a head.
        label_column: Column of the class; default: that of the fine-tuning, else `label`.
        max_eval_samples: Maximum number of texts to measure on; default: all.
        benchmark: Measure the time of PyTorch and of the exported model, at 512 tokens and at the maximum length.
    """

    model: Model[ModelName]
    out: Output[Folder]
    int8: Export[bool] = False
    validation_file: Texts[File | None] = None
    label_column: Texts[Column | None] = None
    max_eval_samples: Texts[Count | None] = None
    benchmark: Measurement[bool] = False


@settings
class BenchSettings:
    """Time and memory of Linformer encoders and of a Transformer of equal size, forward and training.

    Attributes:
        lengths: Values of n in tokens.
        projected_dims: Values of k; all pairs with k < n are measured.
        tokens: Number of tokens per batch, at least one sequence; default: 4,096 on a CPU, else 65,536.
        repetitions: Number of timed runs of each encoder; fewer if they exceed 10 seconds.
        num_hidden_layers: Number of layers.
        hidden_size: d_m, the width of the model.
        num_attention_heads: h, the number of heads per layer; must divide hidden_size.
        intermediate_size: Width of the feed-forward layer.
        device: Device to measure: `cpu`, `cuda` or, with an index, `cuda:1`.
        dtype: Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it.
        output_dir: New or empty folder for the results; default: a new folder below runs/.
    """

    lengths: Measurement[list[int]] = field(default_factory=lambda: [512, 1024, 2048, 4096])
    projected_dims: Measurement[list[int]] = field(default_factory=lambda: [128, 256])
    tokens: Measurement[Count | None] = None
    repetitions: Measurement[Count] = 5
    num_hidden_layers: Encoder[int] = 2
    hidden_size: Encoder[int] = 768
    num_attention_heads: Encoder[int] = 12
    intermediate_size: Encoder[int] = 3072
    device: Machine[str] = "cpu"
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    output_dir: Output[Folder | None] = None


@settings
class InspectSettings:
    """Figures and numbers of a model's attention and projections.

    Attributes:
        model: Folder or hub id of a Linformer.
        output_dir: New folder for figures and numbers.
        text: Text to run the model on; default: the source of Python's argparse.
        text_file: File with the text, UTF-8.
        max_tokens: Maximum number of tokens of the text to use; default: the model's maximum.
        layers: Layers to plot, counted from 0; default: up to four, evenly spaced.
        heads: Heads to plot, counted from 0; default: up to four, evenly spaced.
    """

    model: Model[ModelName]
    output_dir: Output[Folder]
    text: Texts[str | None] = None
    text_file: Texts[File | None] = None
    max_tokens: Texts[Count | None] = None
    layers: Measurement[list[int] | None] = None
    heads: Measurement[list[int] | None] = None


@settings
class SpectrumSettings(DocumentSettings):
    """Singular values of the attention matrices (figure 1 of the paper).

    Attributes:
        model: Folder or hub id of an encoder; of a linear one, the n×k weights are measured.
        text_file: Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); default: the source of the Python
            standard library.
        seq_len: n, tokens per sequence; default: 512, or the model's maximum.
        samples: Number of sequences, taken from all files in turn.
        packing: Join texts and cut them into sequences of n tokens; false: each text is one sequence.
        at: Number of singular values whose cumulative share the heat map shows; default: a quarter of n, 128 of 512 as
            in the paper.
        choose: Choose k for each layer, and write it to `projected_dims.yaml` for `linformer pretrain --config`.
        energy: Choose the smallest k that keeps this share of the sum of the singular values in each layer; default:
            0.9, without a budget.
        budget: Total number of slots of all heads and layers, instead of energy, for the most energy in the layer that
            has least.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    model: Model[ModelName]
    text_file: Texts[list[File] | None] = None
    seq_len: Texts[int | None] = None
    samples: Texts[Count] = 100
    packing: Texts[bool] = True
    at: Measurement[int | None] = None
    choose: ChoiceOfK[bool] = False
    energy: ChoiceOfK[float | None] = None
    budget: ChoiceOfK[int | None] = None
    output_dir: Output[Folder | None] = None
