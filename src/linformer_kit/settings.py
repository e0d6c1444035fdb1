"""The typed settings of the commands and the fields of `LinformerConfig`: names, types, defaults, one line each.

And how a YAML file of them is read.

Imports nothing heavy, so that `linformer --help` stays instant. A field without a default comes from the recipe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from linformer_kit.errors import InputError

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
Projection = Literal["linear", "mean_pool", "max_pool", "conv", "dense_conv", "random"]
Attention = Literal["linformer", "full"]
BiasOrder = Literal["before_projection", "after_projection"]
ShorterInput = Literal["prefix", "stretch"]
ResizeMode = Literal["extend", "interpolate"]
LinearInitializer = Literal["normal", "lecun_normal"]
ProjectionInitializer = Literal[
    "pooling", "pooling_noise", "shifted_pooling", "selection", "normal", "lecun_normal", "xavier_uniform"
]

IGNORED_LABEL = -100  # a position without a target, in data and models alike; what losses of torch skip


@dataclass(kw_only=True)
class ModelSettings:
    """The architecture: the fields of `LinformerConfig`.

    Attributes:
        vocab_size: Number of tokens in the vocabulary; `pretrain` trains a tokenizer of this size.
        max_position_embeddings: n, the longest sequence in tokens.
        projected_dim: k, the length of the projected keys and values; or a list of one for each layer, or of a list
            of one for each head for each layer.
        sharing: Which matrices E and F are one and the same (section 4 of the paper).
        projection: The map of n positions to k slots.
        projection_initializer: Start of E and F where `projection` is `linear` (`projection.starts`, docs/learning.md).
        shorter_input: What texts shorter than n use: the first columns of E and the first windows (`prefix`), or E and
            windows resampled to their length (`stretch`).
        attention: `full` is the Transformer of equal size, the baseline of every comparison.
        bias_order: Whether the biases of keys and values are added before E and F or, as fairseq does, after.
        hidden_size: d_m, the width of the model.
        num_hidden_layers: Number of layers.
        num_attention_heads: h, heads in a layer; divides hidden_size.
        intermediate_size: Width of the feed-forward layer.
        hidden_act: Activation of the feed-forward layer.
        hidden_dropout_prob: Dropout after embeddings, attention and feed-forward.
        attention_probs_dropout_prob: Dropout on the context mapping.
        classifier_dropout: Dropout in the classification heads; hidden_dropout_prob if not given.
        type_vocab_size: Number of token types; 0 means that there are none.
        position_offset: Unused rows at the start of the position table (2 in RoBERTa and fairseq checkpoints).
        initializer_range: Standard deviation of the start of embeddings and linear maps, but not of E and F.
        linear_initializer: Start of the linear maps: `normal` with initializer_range, as in BERT and RoBERTa, or
            `lecun_normal` with 1/√inputs, without which narrow models hardly learn (docs/log.md). Never of the decoder.
        local_convolution: Tokens that a depthwise convolution beside each attention sees, an odd number; 0: there is
            none, as in the paper. Slots mix their tokens, so this is how a token tells its neighbours apart, at little
            cost (docs/learning.md).
        norm_first: Whether LayerNorm stands before attention and feed-forward (pre-norm) and once more at the end,
            instead of after each residual (post-norm, as in BERT and RoBERTa); learns earlier (docs/learning.md).
        layer_norm_eps: Epsilon of the layer norms.
        pad_token_id: Token that fills up short sequences.
        bos_token_id: Token at the start of a sequence.
        eos_token_id: Token at the end of a document.
        tie_word_embeddings: Whether the masked-language-model head uses the word embeddings.
    """

    vocab_size: int = 50265
    max_position_embeddings: int = 512
    projected_dim: int | list[int] | list[list[int]] = 128
    sharing: Sharing = "headwise"
    projection: Projection = "linear"
    projection_initializer: ProjectionInitializer = "shifted_pooling"
    shorter_input: ShorterInput = "prefix"
    attention: Attention = "linformer"
    bias_order: BiasOrder = "before_projection"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    type_vocab_size: int = 0
    position_offset: int = 0
    initializer_range: float = 0.02
    linear_initializer: LinearInitializer = "normal"
    local_convolution: int = 0
    norm_first: bool = False
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | None = 2
    tie_word_embeddings: bool = True


@dataclass(kw_only=True)
class CorpusSettings:
    """The text to learn from.

    Attributes:
        train_file: Files, folders or globs (.txt .py .md .jsonl .csv .tsv .parquet); without any, the Python
            standard library's own source.
        validation_file: The same for validation; without any, a part of the training documents is held out.
        dataset_name: Data set on the Hugging Face hub, streamed, instead of train_file.
        dataset_config_name: Configuration of that data set.
        text_column: Column that holds the text of .jsonl, .csv, .tsv, .parquet and hub data.
        document: What one document is in a .txt file; `auto` is `wikitext` where the file starts with such a
            heading, else the whole `file`.
        validation_fraction: Share of the documents held out for validation.
        split_seed: Seed of the choice of these documents; default: seed.
        streaming: Read and tokenise while training and cache nothing; default: only for hub data.
        cache_dir: Where tokenised text is kept; default: linformer_kit in $XDG_CACHE_HOME or ~/.cache.
    """

    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    dataset_name: str | None = None
    dataset_config_name: str | None = None
    text_column: str = "text"
    document: Literal["auto", "file", "line", "blank_line", "wikitext"] = "auto"
    validation_fraction: float = 0.05
    split_seed: int | None = None
    streaming: bool | None = None
    cache_dir: str | None = None


@dataclass(kw_only=True)
class PretrainSettings(CorpusSettings):
    """Masked-language-model pretraining.

    Attributes:
        model: The architecture.
        from_model: Folder or hub id of a masked language model of this package to go on from, with its architecture
            and tokenizer; `model` and `tokenizer` do not count then.
        resize_to: Longest sequence that from_model is resized to, in tokens; default: its own.
        resize_mode: How it is resized: E, F and positions stretched (`interpolate`) or repeated (`extend`; texts of the
            old length then give what they gave). Stretched ones learn on from a better place (docs/learning.md).
        tokenizer: Folder or hub id of an existing tokenizer; without one, a byte-level BPE is trained on the corpus.
        mlm_probability: Share of the tokens to predict; of these 80 % become <mask>, 10 % another token, 10 % stay.
        output_dir: Where the model and all results go; default: a new folder below runs/.
        max_steps: Updates.
        per_device_train_batch_size: Sequences per device and forward pass.
        per_device_eval_batch_size: The same in evaluation.
        gradient_accumulation_steps: Forward passes per update.
        learning_rate: Highest learning rate, reached at the end of the warm-up, then falling linearly to 0.
        warmup_steps: Updates of linear warm-up.
        weight_decay: AdamW's weight decay.
        projection_learning_rate_factor: Learning rate of E and F, as a multiple of learning_rate.
        projection_weight_decay: Weight decay of E and F; default: weight_decay.
        elastic_projected_dims: Numbers of slots of which each update draws one, so that the model can be run with any
            of them (`set_projected_dim`); default: projected_dim alone.
        max_grad_norm: Longest gradient; longer ones are scaled down.
        eval_steps: Updates between evaluations.
        save_steps: Updates between checkpoints.
        save_total_limit: Checkpoints kept.
        logging_steps: Updates between lines of the log.
        bf16: Mixed precision; `auto` where the processor has bf16 instructions.
        activation_checkpointing: Recompute activations in the backward pass, to save memory.
        dataloader_num_workers: Processes that prepare batches beside the training.
        report_to: Loggers, as in TrainingArguments.
        seed: Seed of everything that is drawn.
        trainer: Any other field of transformers' TrainingArguments, as --trainer.NAME VALUE.
        compare_full: Train an equal model with full attention too and put its results beside.
        resume: Continue in output_dir from its newest whole checkpoint, from the start if there is none.
        overwrite: Start anew in an output_dir that already holds a run.
    """

    model: ModelSettings
    from_model: str | None = None
    resize_to: int | None = None
    resize_mode: ResizeMode = "interpolate"
    tokenizer: str | None = None
    mlm_probability: float = 0.15
    output_dir: str | None = None
    max_steps: int
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    gradient_accumulation_steps: int = 1
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 0.01
    projection_learning_rate_factor: float = 1.0
    projection_weight_decay: float | None = None
    elastic_projected_dims: list[int] | None = None
    max_grad_norm: float = 1.0
    eval_steps: int
    save_steps: int
    save_total_limit: int | None = 2
    logging_steps: int = 10
    bf16: Literal["auto", "true", "false"] = "auto"
    activation_checkpointing: bool = False
    dataloader_num_workers: int = 0
    report_to: str = "tensorboard"
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)
    compare_full: bool = False
    resume: bool = False
    overwrite: bool = False


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
        source: Folder or hub id of a RoBERTa or BERT, or file of a fairseq Linformer or RoBERTa (.pt).
        out: New folder for the Linformer and its tokenizer.
        projected_dim: k of new E and F; default: 128, or the longest sequence if that is less. Not for fairseq.
        sharing: Which new E and F are one and the same; default: headwise. Not for fairseq.
        projection: The map of n positions to k slots; default: linear. Not for fairseq.
        shorter_input: What texts shorter than n use; default: prefix. Not for fairseq.
        attention: `full` converts to the Transformer that the source is; default: linformer. Not for fairseq.
        max_position_embeddings: Longest sequence of the result; default: that of the source.
        resize_mode: How a longer or shorter n comes about: positions repeated (`extend`) or stretched (`interpolate`).
        num_attention_heads: Heads in a layer, where a fairseq file does not say.
        classification_head: Name of the head of a fairseq file to take instead of the masked language model's.
        tokenizer: Folder or hub id of the tokenizer, where the source has none.
    """

    source: str
    out: str
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


def names_folder(name: str) -> bool:
    """Whether what stands for a model means a folder, there or not, and not an id of the hub."""
    return os.path.isdir(name) or name.startswith((".", "/", "~")) or name.count("/") > 1


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a file of settings, checked: the parser's own messages name no file.

    Raises:
        InputError: in one line, for a file that is missing or is no YAML of names and values.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        names = list(_names(content))
    except FileNotFoundError:
        raise InputError(f"config: expected a YAML file, got {path}, which does not exist") from None
    except RecursionError:
        raise InputError(f"{path}: expected YAML, got lists or names that nest too deeply") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path}:{place} expected YAML, got {problem}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected YAML of names and values, got {type(content).__name__}")
    for name in names:
        if not isinstance(name, str) or name.startswith("__"):  # the parser takes `__path__` as a note to itself
            raise InputError(f"{path}: expected names of settings, got {name!r}")
    return content


def _names(content: Any) -> Iterator[Any]:
    """Every name at every depth; without end where an anchor holds itself."""
    if isinstance(content, dict):
        yield from content
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            yield from _names(item)
