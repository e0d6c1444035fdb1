"""`linformer convert` and `linformer linearize`: a pretrained model becomes a Linformer, or linear in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors
from linformer_cli.outputs import check_new_folder
from linformer_cli.settings import ConvertSettings, LinearizeCommandSettings, LinearizeSettings, changed
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.encoders import ENCODER, SLOT_FIELDS, convert_encoder, read_encoder_config
from linformer_kit.interop.checkpoints.fairseq import read_fairseq_checkpoint
from linformer_kit.interop.checkpoints.pretrained import optional_file
from linformer_kit.interop.checkpoints.sentences import Files, sentence_files, warn_of_left_out, write_files
from linformer_kit.interop.loading import Loaded, has_tokenizer, input_length, load_model, resize, tokenizer_for
from linformer_kit.linearized.adapter import adapters_of
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.fields import EXACT
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import longest_input
from linformer_kit.models.configuration import LinformerConfig

# Settings of `convert` that are fields of the configuration.
_FIELDS = (*SLOT_FIELDS, "attention", "max_position_embeddings")
_IMAGE_PROCESSOR = "preprocessor_config.json"


def main(settings: ConvertSettings | LinearizeCommandSettings) -> None:
    """Make a Linformer of `model`, or linearise it, save it and its tokenizer in `out`, and print a summary.

    Raises:
        InputError: for a model that cannot be converted, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out, new_length = check_new_folder("out", settings.out), settings.max_position_embeddings is not None
    if isinstance(settings, ConvertSettings):
        loaded, advice = _converted(settings)
        _save(loaded.model, out, settings.model, settings.tokenizer, embeds=not advice, new_length=new_length)
    else:
        loaded, advice = _linearized(settings)
        new_length |= settings.adapter is not None
        _save(loaded.model, out, settings.model, None, embeds=True, new_length=new_length)
    _describe(loaded, advice)
    print(f"Saved in {settings.out}")


def _converted(settings: ConvertSettings) -> tuple[Loaded, str]:
    """The Linformer, and how to train new E and F; empty if all of it is trained."""
    source, seq_len = settings.model, settings.max_position_embeddings
    config = None if _is_fairseq(source) else read_encoder_config(source)
    given = {name: value for name in _FIELDS if (value := getattr(settings, name)) is not None}
    is_linformer = isinstance(config, LinformerConfig) and config.has_slots
    if config is None or (is_linformer and seq_len is not None):
        _check_unset(given, (*SLOT_FIELDS, "attention"), "for a model that determines it")
        loaded = (
            read_fairseq_checkpoint(source)
            if config is None
            else load_model(source, None, ENCODER, config=config, to_run=False)
        )
        resize(loaded.model, seq_len, settings.resize_mode)
        return loaded, ""
    if is_full := settings.attention == "full":
        _check_unset(given, SLOT_FIELDS, "with full attention")
    loaded = convert_encoder(source, config, resize_mode=settings.resize_mode, **given)
    return loaded, "" if is_full else "continue training"


def _check_unset(given: dict[str, Any], names: Sequence[str], why: str) -> None:
    """Reject settings that a model decides."""
    for name in names:
        if name in given:
            raise InputError(f"{name}: expected none {why}, got {given[name]!r}")


def _linearized(settings: LinearizeCommandSettings) -> tuple[Loaded, str]:
    """The linear encoder, and how to train its slots; empty if there is nothing to train.

    An encoder that is linear already gets another maximum length, if that is all that the settings change.
    """
    loaded = load_model(settings.model, None, ENCODER, to_run=False)
    model, seq_len, advice = loaded.model, settings.max_position_embeddings, ""
    is_resized = changed(settings, LinearizeSettings).keys() - {"resize_mode"} == {"max_position_embeddings"}
    if isinstance(model, LinearizedModel) and is_resized and settings.adapter is None:
        resize(model, seq_len, settings.resize_mode)
        return loaded, ""
    if settings.adapter is None and settings.layers != []:
        kind = type(model).__name__
        is_distilled = model.main_input_name == "input_ids" and "QuestionAnswering" not in kind
        advice = "run `linformer distill`" if is_distilled else "continue training"
        if adapters := adapters_of(model, seq_len):
            advice = f"add `--adapter {adapters[0]}`, which ships for this model, or {advice}"
    linearize_encoder(model, settings, settings.adapter)
    return loaded, advice


def _save(
    model: PreTrainedModel, out: Path, source: str, tokenizer: str | None, *, embeds: bool, new_length: bool
) -> None:
    """Save a model with the tokenizer, and other files that belong to it, of the folder or hub id it was made from.

    Args:
        model: The model.
        out: The new folder.
        source: Folder, hub id or fairseq file that the model was made from.
        tokenizer: Folder or hub id of another tokenizer.
        embeds: Whether files of sentence-transformers are kept; a model with untrained E and F is no embedder.
        new_length: Whether n is new, and so the limit of the tokenizer and of sentence-transformers.

    Raises:
        InputError: for an unsuitable tokenizer; nothing is written then.
    """
    longest = longest_input(model)
    extra_files: Files = {}
    if not _is_fairseq(source):
        extra_files = sentence_files(source, longer=longest if new_length else None) if embeds else {}
        warn_of_left_out(source, extra_files)
    if longest is not None:
        found = _tokenizer(model, tokenizer or source, is_given=tokenizer is not None)
    elif tokenizer is not None:
        raise InputError(f"tokenizer: expected none for a model of images, got {tokenizer}")
    with whole_folder(out) as folder:
        model.save_pretrained(folder)
        if longest is None:
            if images := optional_file(source, _IMAGE_PROCESSOR):
                shutil.copy(images, folder)
        elif found is not None:
            found.model_max_length = longest if new_length else input_length(model, found, None)
            save_tokenizer(found, folder)
        write_files(extra_files, folder)
        write_manifest(folder)
    if longest is not None and found is None:
        print("No tokenizer: the source has none.")


def _is_fairseq(source: str) -> bool:
    """Whether a source is a file, of fairseq, rather than a folder or hub id."""
    return os.path.isfile(source) or (source.endswith((".pt", ".pth", ".bin")) and not os.path.isdir(source))


def _describe(loaded: Loaded, training: str) -> None:
    """Print the sizes, how to train what is new, if anything is, and which weights of the source were left out."""
    model = loaded.model
    config = model.config.to_dict()
    slots = config.get("linformer", config)
    attention = "full attention"
    if getattr(model.config, "has_slots", True) and slots.get("layers") != []:
        attention = f"k {slots['projected_dim']}, sharing {slots['sharing']}"
        attention += "".join(f", {name} {slots[name]}" for name in EXACT if slots[name])
        if full_layers := slots.get("full_layers"):
            attention += f", layers with full attention: {len(full_layers)}"
    size = f"{model.num_parameters():,} parameters, n {model.longest_sequence:,}"
    print(f"{type(model).__name__}, {size}, {attention}")
    if training:
        matrices, projection = model.projection_matrix_count(), slots["projection"]
        new = f"{matrices} matrices E and F ({projection}). They are untrained" if matrices else f"slots ({projection})"
        purpose = "before use" if matrices else "to bring the outputs closer to those of the source"
        print(f"New: {new}: {training} {purpose}.")
    if loaded.left_out:
        names = sorted({name.rpartition(".")[0] for name in loaded.left_out})
        print(f"Weights of the source that are not in the result: {', '.join(names)}")


def _tokenizer(model: PreTrainedModel, source: str, *, is_given: bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a source, if it has one; one that is given must be there."""
    if _is_fairseq(source) or not has_tokenizer(source):
        if is_given:
            raise InputError(f"tokenizer: expected a tokenizer, got {source}, which has none")
        return None
    with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
        tokenizer = tokenizer_for(model, source)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    return tokenizer
