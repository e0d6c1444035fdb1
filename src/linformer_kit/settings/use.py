"""The settings of commands that use a model or make one of another."""

from dataclasses import dataclass, field
from typing import Literal

from linformer_kit.settings.model import Attention, Projection, ResizeMode, Sharing, ShorterInput


@dataclass(kw_only=True)
class FillMaskSettings:
    """Guesses for the <mask> tokens of a text.

    Attributes:
        model: Folder or hub id of a masked language model.
        text: Text with one or more <mask> tokens.
        top_k: Guesses for each.
        json: Print JSON instead of a table.
    """

    model: str
    text: str
    top_k: int = 5
    json: bool = False


@dataclass(kw_only=True)
class ConvertSettings:
    """A foreign checkpoint as a Linformer.

    Attributes:
        source: Folder or hub id of a RoBERTa or BERT, also one that was made linear in place, or file of a fairseq
            Linformer or RoBERTa (.pt); in place, of any encoder that goes through transformers' attention interface.
        out: New folder for the Linformer and its tokenizer.
        in_place: Keep the model's own class and change its attention alone, instead of a model of this package, which
            multiplies in a cheaper order.
        projected_dim: k of new E and F; default: 128, or the longest sequence if that is less. Not for fairseq.
        sharing: Which new E and F are one and the same; default: headwise. Not for fairseq.
        projection: The map of n positions to k slots; default: linear. Not for fairseq.
        shorter_input: What texts shorter than n use; default: prefix, in place stretch. Not for fairseq.
        attention: `full` converts to the Transformer that the source is; default: linformer. Not for fairseq.
        max_position_embeddings: Longest sequence of the result; default: that of the source.
        resize_mode: How a longer or shorter n comes about: positions repeated (`extend`) or stretched (`interpolate`).
        num_attention_heads: Heads in a layer, where a fairseq file does not say.
        classification_head: Name of the head of a fairseq file to take instead of the masked language model's.
        tokenizer: Folder or hub id of the tokenizer, where the source has none.
    """

    source: str
    out: str
    in_place: bool = False
    projected_dim: int | list[int] | list[list[int]] | None = None
    sharing: Sharing | None = None
    projection: Projection | None = None
    shorter_input: ShorterInput | None = None
    attention: Attention | None = None
    max_position_embeddings: int | None = None
    resize_mode: ResizeMode = "extend"
    num_attention_heads: int | None = None
    classification_head: str | None = None
    tokenizer: str | None = None


@dataclass(kw_only=True)
class ExportSettings:
    """A model for where it is served.

    Attributes:
        model: Folder or hub id of an encoder: of this package or any of transformers, bare or with a head.
        out: New folder for the exported model and its tokenizer.
        format: `onnx` for ONNX Runtime, one file; `torch` for transformers, with int8 weights only.
        int8: Make weights of linear layers 8-bit integers, and their inputs as they come.
        validation_file: File of texts (.txt .csv .tsv .jsonl .parquet) on which to measure what int8 loses; with
            classes for a classifier.
        text_column: Column of the text; default: that of the fine-tuning, else `text`.
        text_pair_column: Column of a second text; default: that of the fine-tuning.
        label_column: Column of the class; default: that of the fine-tuning, else `label`.
        max_eval_samples: Most texts to measure on; default: all.
        benchmark: Measure the time of PyTorch and of what was exported, at 512 tokens and at the longest.
    """

    model: str
    out: str
    format: Literal["onnx", "torch"] = "onnx"
    int8: bool = False
    validation_file: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    max_eval_samples: int | None = None
    benchmark: bool = False


@dataclass(kw_only=True)
class InspectSettings:
    """A look inside a model.

    Attributes:
        model: Folder or hub id of a Linformer.
        output_dir: New folder for pictures and numbers.
        text: Text to run the model on; default: the source of Python's argparse.
        text_file: File with the text, UTF-8.
        max_tokens: Tokens of the text to use; default: as many as the model takes.
        layers: Layers to draw, from 0; default: up to four, evenly spread.
        heads: Heads to draw, from 0; default: up to four, evenly spread.
    """

    model: str
    output_dir: str
    text: str | None = None
    text_file: str | None = None
    max_tokens: int | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None


@dataclass(kw_only=True)
class SequenceSettings:
    """The text that an analysis runs a model on.

    Attributes:
        text: Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); without any, the Python standard
            library's own source.
        text_column: Column that holds the text of .jsonl, .csv, .tsv and .parquet.
        document: What one text is in a .txt file; `auto` is `wikitext` where the file starts with such a heading, else
            the whole `file`.
        seq_len: n, tokens in a sequence; default: 512, or as many as the model takes.
        samples: How many sequences, taken from all files in turn.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    text: list[str] | None = None
    text_column: str = "text"
    document: Literal["auto", "file", "line", "blank_line", "wikitext"] = "auto"
    seq_len: int | None = None
    samples: int = 100
    output_dir: str | None = None


@dataclass(kw_only=True)
class SpectrumSettings(SequenceSettings):
    """How fast the singular values of attention fall.

    Attributes:
        model: Folder or hub id of an encoder, or a spectrum.json, which is drawn again instead.
        packing: Join texts and cut them to sequences of n tokens; without it each text is a sequence of its own.
        at: Singular values whose share the heat map shows; default: a quarter of all, 128 of 512 as in the paper.
        leading: Seek only so many of the largest singular values, by a randomised decomposition; default: all, exactly.
        untrained: Draw the weights of the model anew, to see what training has changed.
        seed: Seed of these weights.
        choose: Write `projected_dims.yaml`, k for each layer and head, for `linformer pretrain --config`.
        energy: The least k that keeps this share of the singular values in each head; default: 0.9, without a budget.
        budget: The slots of all heads of all layers together, instead of energy.
        choose_for: What a budget is spent on: the most energy in `total` (default), or for the head that has the
            `least`.
        choose_by: k for each `head`, or the same for all heads of a `layer`; default: head.
        multiple_of: What each k is a multiple of; default: 1.
    """

    model: str
    packing: bool = True
    at: int | None = None
    leading: int | None = None
    untrained: bool = False
    seed: int = 0
    choose: bool = False
    energy: float | None = None
    budget: int | None = None
    choose_for: Literal["total", "least"] | None = None
    choose_by: Literal["head", "layer"] | None = None
    multiple_of: int | None = None


@dataclass(kw_only=True)
class TheoremsSettings(SequenceSettings):
    """Theorems 1 and 2 as experiments.

    Attributes:
        model: Folder or hub id of an encoder with full attention, to try them on its attention too.
        samples: Sequences that everything is tried on, with a model.
        fit_samples: Further sequences that E and F are fitted to before.
        layers: Layers of the model, from 0; default: the first, the middle and the last.
        lengths: n of random attention.
        head_dim: d of random attention.
        epsilons: ε, the relative errors that the theorems promise.
        draws: How often R is drawn for each random matrix; a quarter of it for each of the model's, and where k is
            above n.
        fit_steps: Updates of this fit; 0: none, and no such curve.
        seed: Seed of all that is drawn.
    """

    model: str | None = None
    samples: int = 4
    fit_samples: int = 48
    layers: list[int] | None = None
    lengths: list[int] = field(default_factory=lambda: [128, 512, 2048])
    head_dim: int = 64
    epsilons: list[float] = field(default_factory=lambda: [0.1, 0.25, 0.5])
    draws: int = 20
    fit_steps: int = 400
    seed: int = 0
