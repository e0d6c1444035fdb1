"""Make a Linformer of a checkpoint that somebody else has trained."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from linformer_kit.checkpoints import bert, roberta
from linformer_kit.checkpoints.fairseq import load_fairseq_checkpoint
from linformer_kit.errors import InputError, input_errors
from linformer_kit.modeling import LinformerPreTrainedModel
from linformer_kit.settings import ConvertSettings

_OF_NEW_PROJECTIONS = ("projected_dim", "sharing", "projection", "shorter_input", "attention")
_OF_FAIRSEQ = ("num_attention_heads", "classification_head")


def main(settings: ConvertSettings) -> None:
    """Convert, and say what came of it."""
    model, tokenizer = convert(settings)
    config = model.config
    linear = config.attention == "linformer"
    print(
        f"{type(model).__name__}, {model.num_parameters():,} parameters, n {config.max_position_embeddings:,}", end=""
    )
    print(f", k {config.projected_dim}, sharing {config.sharing}" if linear else ", full attention")
    if linear and not _is_fairseq(settings.source):
        print(
            f"New: {model.projection_matrix_count()} matrices E and F ({config.projection}). They know nothing yet: "
            "train on before use."
        )
    if tokenizer is None:
        print("No tokenizer: the source has none; --tokenizer names one.")
    print(f"Saved in {settings.out}")


def convert(settings: ConvertSettings) -> tuple[LinformerPreTrainedModel, PreTrainedTokenizerBase | None]:
    """Read `settings.source`, and save the Linformer, and the tokenizer if there is one, in `settings.out`.

    Returns:
        What was saved.

    Raises:
        InputError: for a source that is no such checkpoint, settings that do not fit it, or an `out` that holds
            anything. Nothing is written then.
    """
    out = Path(settings.out)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"out: expected a new or empty folder, got {out}, which exists")
    model = _load(settings)
    if settings.max_position_embeddings is not None:
        model.resize_sequence_length(settings.max_position_embeddings, mode=settings.resize_mode)
    tokenizer = _tokenizer(settings, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside it first, then in its place: what stands in `out` is whole.
    folder = out.with_name(f".{out.name}.{os.getpid()}")
    folder.mkdir()
    try:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        os.replace(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return model, tokenizer


def _load(settings: ConvertSettings) -> LinformerPreTrainedModel:
    fairseq = _is_fairseq(settings.source)
    for name in _OF_NEW_PROJECTIONS if fairseq else _OF_FAIRSEQ:
        if getattr(settings, name) is not None:
            kind = "a fairseq file, which decides it" if fairseq else "a model that is no fairseq file"
            raise InputError(f"{name}: expected none for {kind}, got {getattr(settings, name)!r}")
    if fairseq:
        return load_fairseq_checkpoint(
            settings.source,
            num_attention_heads=settings.num_attention_heads,
            classification_head=settings.classification_head,
        )
    fields: dict[str, Any] = {name: getattr(settings, name) for name in _OF_NEW_PROJECTIONS}
    fields = {name: value for name, value in fields.items() if value is not None}
    if _model_type(settings.source) in bert.MODEL_TYPES:
        return bert.load_bert_checkpoint(settings.source, **fields)
    return roberta.load_roberta_checkpoint(settings.source, **fields)


def _is_fairseq(source: str) -> bool:
    return os.path.isfile(source) or source.endswith((".pt", ".pth", ".bin"))


def _model_type(source: str) -> str | None:
    """What kind of model it is; None where it says nothing, so that the loader finds words for it."""
    known = (*roberta.MODEL_TYPES, *bert.MODEL_TYPES)
    try:
        found = AutoConfig.from_pretrained(source).model_type
    except (OSError, ValueError, KeyError):
        return None
    if found not in known:
        raise InputError(f"{source}: expected a model of type {', '.join(known)}, got {found}")
    return found


def _tokenizer(settings: ConvertSettings, model: LinformerPreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the source, or that of the settings, for sequences of the model's length."""
    source = settings.tokenizer or settings.source
    if settings.tokenizer is None and _is_fairseq(settings.source):
        return None
    try:
        with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
            tokenizer = AutoTokenizer.from_pretrained(source)
    except InputError:
        if settings.tokenizer is None:
            return None
        raise
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    tokenizer.model_max_length = model.config.max_position_embeddings
    return tokenizer
