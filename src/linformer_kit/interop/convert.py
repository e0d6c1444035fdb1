"""Convert a pretrained checkpoint, of another library or with full attention, to a Linformer."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors, renamed
from linformer_cli.settings import ConvertSettings, LinearizeSettings
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.encoders import ENCODER, SLOT_FIELDS, load_encoder_checkpoint
from linformer_kit.interop.checkpoints.fairseq import load_fairseq_checkpoint
from linformer_kit.interop.checkpoints.pretrained import optional_file
from linformer_kit.interop.checkpoints.sentences import sentence_files, write_files
from linformer_kit.interop.loading import (
    auto_class_of,
    has_tokenizer,
    input_length,
    load_pretrained,
    loaded,
    resize,
    tokenizer_for,
)
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.fields import EXACT
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import longest_input

_resize = functools.partial(resize, setting="max_position_embeddings")
_IMAGE_PROCESSOR = "preprocessor_config.json"


class Converted(NamedTuple):
    """A converted model.

    Attributes:
        model: The model; `loaded` has the names of the source's weights that it left out.
        learned: Whether E and F, or slots, are trained.
    """

    model: Any
    learned: bool = False


def main(settings: ConvertSettings) -> None:
    """Convert, and print a summary of the result."""
    (model, learned), tokenizer = convert(settings)
    shape, projection = _described(model)
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters, {shape}")
    if projection is not None and not learned:
        matrices = model.projection_matrix_count()
        new = f"{matrices} matrices E and F ({projection}). They are untrained" if matrices else f"slots ({projection})"
        training = "run `linformer distill`" if settings.in_place else "continue training"
        purpose = "before use" if matrices else "to bring the outputs closer to those of the source"
        print(f"New: {new}: {training} {purpose}.")
    if left_out := loaded(model).left_out:
        names = sorted({name.rpartition(".")[0] for name in left_out})
        print(f"Weights of the source that are not in the result: {', '.join(names)}")
    if tokenizer is None and longest_input(model) is not None:
        print("No tokenizer: the source has none; give one with --tokenizer.")
    print(f"Saved in {settings.out}")


def _described(model: PreTrainedModel) -> tuple[str, str | None]:
    """Sizes as text, and the projection if there is one."""
    config = model.config.to_dict()
    slots, shape = config.get("linformer", config), f"n {model.longest_sequence:,}"
    if config.get("attention") == "full":
        return f"{shape}, full attention", None
    exact = "".join(f", {name} {slots[name]}" for name in EXACT if slots[name])
    return f"{shape}, k {slots['projected_dim']}, sharing {slots['sharing']}{exact}", slots["projection"]


def convert(settings: ConvertSettings) -> tuple[Converted, PreTrainedTokenizerBase | None]:
    """Convert `settings.source`, and save the Linformer and, if there is one, the tokenizer in `settings.out`.

    Returns:
        The model, and the tokenizer.

    Raises:
        InputError: for a source that cannot be converted, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    converted = _load(settings)
    longer = longest_input(converted.model) if _changes_length(settings) else None
    # A model with new E and F is no embedder.
    embeds = settings.in_place or converted.learned or settings.attention == "full"
    extra_files = sentence_files(settings.source, longer=longer) if embeds and not _is_fairseq(settings.source) else {}
    tokenizer = _tokenizer(settings, converted.model)
    with whole_folder(out) as folder:
        converted.model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_files(extra_files, folder)
        if settings.in_place and (images := optional_file(settings.source, _IMAGE_PROCESSOR)):
            shutil.copy(images, folder)
        write_manifest(folder)
    return converted, tokenizer


def _load(settings: ConvertSettings) -> Converted:
    if settings.in_place:
        return _linearized(settings)
    _check_unset(settings, ("adapter",), "without in_place")
    if _is_fairseq(settings.source):
        _check_unset(settings, (*SLOT_FIELDS, "attention"), "for a fairseq file, which determines it")
        model = load_fairseq_checkpoint(settings.source)
        _resize(model, settings.max_position_embeddings, settings.resize_mode)
        return Converted(model, learned=True)
    if settings.attention == "full":
        _check_unset(settings, SLOT_FIELDS, "with full attention")
    fields = _given(settings, (*SLOT_FIELDS, "attention", "max_position_embeddings"))
    return Converted(load_encoder_checkpoint(settings.source, resize_mode=settings.resize_mode, **fields))


def _linearized(settings: ConvertSettings) -> Converted:
    """The source linearised in place."""
    _check_unset(settings, ("attention",), "with in_place")
    if _is_fairseq(settings.source):
        raise InputError(f"source: expected an encoder of transformers with in_place, got {settings.source}")
    given = _given(settings, (*SLOT_FIELDS, "max_position_embeddings"))
    with renamed("model", "source"):
        model = load_pretrained(settings.source, auto_class_of(settings.source, ENCODER), ENCODER)
        learned = isinstance(model, LinearizedModel)
        if learned and given.keys() == {"max_position_embeddings"}:
            _resize(model, settings.max_position_embeddings, settings.resize_mode)
        else:
            linear = LinearizeSettings(**given, resize_mode=settings.resize_mode)
            model = linearize_encoder(model, linear, settings.adapter)
        return Converted(model, learned or settings.adapter is not None)


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
