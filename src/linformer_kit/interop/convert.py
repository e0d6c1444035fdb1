"""Convert a pretrained checkpoint, of another library or with full attention, to a Linformer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors, renamed
from linformer_cli.outputs import check_new_folder
from linformer_cli.settings import ConvertSettings, LinearizeSettings
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.encoders import ENCODER, SLOT_FIELDS, convert_encoder, read_encoder_config
from linformer_kit.interop.checkpoints.fairseq import read_fairseq_checkpoint
from linformer_kit.interop.checkpoints.pretrained import optional_file
from linformer_kit.interop.checkpoints.sentences import Files, sentence_files, warn_of_left_out, write_files
from linformer_kit.interop.loading import (
    Loaded,
    has_tokenizer,
    input_length,
    load_model,
    resize,
    tokenizer_for,
)
from linformer_kit.linearized.adapter import adapters_of
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.fields import EXACT
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import longest_input
from linformer_kit.models.configuration import LinformerConfig

_IMAGE_PROCESSOR = "preprocessor_config.json"


def main(settings: ConvertSettings) -> None:
    """Convert `source`, save the Linformer and, if there is one, the tokenizer in `out`, and print a summary.

    Raises:
        InputError: for a source that cannot be converted, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    loaded, learned, adapters = _load(settings)
    model = loaded.model
    longer = longest_input(model) if _changes_length(settings) else None
    # A model with new E and F is no embedder.
    embeds = settings.in_place or learned or settings.attention == "full"
    extra_files: Files = {}
    if not _is_fairseq(settings.source):
        extra_files = sentence_files(settings.source, longer=longer) if embeds else {}
        warn_of_left_out(settings.source, extra_files)
    tokenizer = _tokenizer(settings, model)
    with whole_folder(out) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            save_tokenizer(tokenizer, folder)
        write_files(extra_files, folder)
        if settings.in_place and (images := optional_file(settings.source, _IMAGE_PROCESSOR)):
            shutil.copy(images, folder)
        write_manifest(folder)
    _describe(loaded, learned=learned, in_place=settings.in_place, adapters=adapters)
    if tokenizer is None and longest_input(model) is not None:
        print("No tokenizer: the source has none; give one with --tokenizer.")
    print(f"Saved in {settings.out}")


def _describe(loaded: Loaded, *, learned: bool, in_place: bool, adapters: Sequence[str]) -> None:
    """Print the sizes, what is untrained, and which weights of the source were left out."""
    model = loaded.model
    config = model.config.to_dict()
    slots = config.get("linformer", config)
    is_linear = config.get("attention") != "full" and slots.get("layers") != []
    attention = "full attention"
    if is_linear:
        attention = f"k {slots['projected_dim']}, sharing {slots['sharing']}"
        attention += "".join(f", {name} {slots[name]}" for name in EXACT if slots[name])
        if full_layers := slots.get("full_layers"):
            attention += f", layers with full attention: {len(full_layers)}"
    size = f"{model.num_parameters():,} parameters, n {model.longest_sequence:,}"
    print(f"{type(model).__name__}, {size}, {attention}")
    if is_linear and not learned:
        matrices, projection = model.projection_matrix_count(), slots["projection"]
        new = f"{matrices} matrices E and F ({projection}). They are untrained" if matrices else f"slots ({projection})"
        distilled = (
            in_place and model.main_input_name == "input_ids" and "QuestionAnswering" not in type(model).__name__
        )
        training = "run `linformer distill`" if distilled else "continue training"
        if adapters:
            training = f"convert with `--adapter {adapters[0]}`, which ships for this model, or {training}"
        purpose = "before use" if matrices else "to bring the outputs closer to those of the source"
        print(f"New: {new}: {training} {purpose}.")
    if loaded.left_out:
        names = sorted({name.rpartition(".")[0] for name in loaded.left_out})
        print(f"Weights of the source that are not in the result: {', '.join(names)}")


def _load(settings: ConvertSettings) -> tuple[Loaded, bool, Sequence[str]]:
    """The converted model, whether its E and F, or slots, are trained, and the names of adapters that ship for it."""
    if settings.in_place:
        return _linearized(settings)
    _check_unset(settings, ("layers", "adapter"), "without in_place")
    if _is_fairseq(settings.source):
        _check_unset(settings, (*SLOT_FIELDS, "attention"), "for a fairseq file, which determines it")
        loaded = read_fairseq_checkpoint(settings.source)
        resize(loaded.model, settings.max_position_embeddings, settings.resize_mode)
        return loaded, True, ()
    with renamed("model", "source"):
        config = read_encoder_config(settings.source)
    is_linformer = isinstance(config, LinformerConfig) and config.attention != "full"
    if settings.max_position_embeddings is not None and is_linformer:
        _check_unset(settings, (*SLOT_FIELDS, "attention"), "for a Linformer, which determines it")
        with renamed("model", "source"):
            loaded = load_model(settings.source, None, ENCODER, config=config, to_run=False)
        resize(loaded.model, settings.max_position_embeddings, settings.resize_mode)
        return loaded, True, ()
    if settings.attention == "full":
        _check_unset(settings, SLOT_FIELDS, "with full attention")
    fields = _given(settings, (*SLOT_FIELDS, "attention", "max_position_embeddings"))
    return convert_encoder(settings.source, config, resize_mode=settings.resize_mode, **fields), False, ()


def _linearized(settings: ConvertSettings) -> tuple[Loaded, bool, Sequence[str]]:
    """The source linearised in place, as from `_load`."""
    _check_unset(settings, ("attention",), "with in_place")
    if _is_fairseq(settings.source):
        raise InputError(f"source: expected an encoder of transformers with in_place, got {settings.source}")
    given = _given(settings, (*SLOT_FIELDS, "layers", "max_position_embeddings"))
    with renamed("model", "source"):
        loaded = load_model(settings.source, None, ENCODER, to_run=False)
        learned, adapters = isinstance(loaded.model, LinearizedModel), list[str]()
        if learned and given.keys() == {"max_position_embeddings"}:
            resize(loaded.model, settings.max_position_embeddings, settings.resize_mode)
        else:
            if settings.adapter is None:
                adapters = adapters_of(loaded.model, settings.max_position_embeddings)
            linear = LinearizeSettings(**given, resize_mode=settings.resize_mode)
            linearize_encoder(loaded.model, linear, settings.adapter)
        return loaded, learned or settings.adapter is not None, adapters


def _given(settings: ConvertSettings, names: Sequence[str]) -> dict[str, Any]:
    """Those of the settings that have a value."""
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def _check_unset(settings: ConvertSettings, names: Sequence[str], why: str) -> None:
    for name, value in _given(settings, names).items():
        raise InputError(f"{name}: expected none {why}, got {value!r}")


def _is_fairseq(source: str) -> bool:
    return os.path.isfile(source) or (source.endswith((".pt", ".pth", ".bin")) and not os.path.isdir(source))


def _tokenizer(settings: ConvertSettings, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer in the settings or of the source; its limit is the model's longest input if that is new."""
    longest = longest_input(model)
    if longest is None:
        if settings.tokenizer is not None:
            raise InputError(f"tokenizer: expected none for a model of images, got {settings.tokenizer}")
        return None
    source = settings.tokenizer or settings.source
    if _is_fairseq(source) or not has_tokenizer(source):
        if settings.tokenizer is not None:
            raise InputError(f"tokenizer: expected a tokenizer, got {source}, which has none")
        return None
    with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
        tokenizer = tokenizer_for(model, source)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    tokenizer.model_max_length = longest if _changes_length(settings) else input_length(model, tokenizer, None)
    return tokenizer


def _changes_length(settings: ConvertSettings) -> bool:
    return settings.adapter is not None or settings.max_position_embeddings is not None
