"""The settings of commands that use a model or make one of another."""

from dataclasses import dataclass

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
