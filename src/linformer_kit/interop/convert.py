"""Convert a pretrained checkpoint, of another library or with full attention, to a Linformer."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from linformer_cli.errors import InputError, input_errors, renamed
from linformer_cli.settings import ConvertSettings, LinearizeSettings, ResizeMode, SlotSettings
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.build import Converted, build_model
from linformer_kit.interop.checkpoints.encoders import ENCODER, MODEL_TYPES, convert_encoder
from linformer_kit.interop.checkpoints.fairseq import convert_fairseq
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.checkpoints.sentences import sentence_files, write_files
from linformer_kit.interop.loading import (
    TOKENIZER_FILES,
    auto_class_of,
    input_length,
    load_pretrained,
    resize,
    tokenizer_for,
)
from linformer_kit.linearized.adapter import adapters_of
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import longest_input
from linformer_kit.models.configuration import LinformerConfig

_KIND = "a model of this package"
_resize = functools.partial(resize, setting="max_position_embeddings")
_OF_SLOTS = tuple(field.name for field in dataclasses.fields(SlotSettings))
# Fields that say nothing in a model with full attention, so its values do not count.
_SLOT_FIELDS = (*_OF_SLOTS, "bias_order")
_OF_NEW_PROJECTIONS = (*_OF_SLOTS, "attention")
_IN_PLACE = (*_OF_SLOTS, "layers", "max_position_embeddings")
_IF_THERE: dict[str, Any] = {
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
}
_IMAGE_PROCESSOR = "preprocessor_config.json"


def convert(settings: ConvertSettings) -> tuple[Converted, PreTrainedTokenizerBase | None]:
    """Convert `settings.source`, and save the Linformer and, if there is one, the tokenizer in `settings.out`.

    Returns:
        The model with the names of the source's weights that it left out, and the tokenizer.

    Raises:
        InputError: for a source that cannot be converted, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    converted = _load(settings)
    longer = longest_input(converted.model) if _changes_length(settings) else None
    # A model with new E and F is no embedder.
    embeds = settings.in_place or converted.learned or settings.attention == "full"
    beside = sentence_files(settings.source, longer=longer) if embeds and not _is_fairseq(settings.source) else {}
    tokenizer = _tokenizer(settings, converted.model)
    with whole_folder(out) as folder:
        converted.model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_files(beside, folder)
        if settings.in_place and (images := cached_file(settings.source, _IMAGE_PROCESSOR, **_IF_THERE)):
            shutil.copy(images, folder)
        write_manifest(folder)
    return converted, tokenizer


def _load(settings: ConvertSettings) -> Converted:
    if settings.in_place:
        return _linearized(settings)
    _check_unset(settings, ("layers", "adapter"), "without in_place")
    if _is_fairseq(settings.source):
        _check_unset(settings, _OF_NEW_PROJECTIONS, "for a fairseq file, which determines it")
        converted = convert_fairseq(settings.source)
        _resize(converted.model, settings.max_position_embeddings, settings.resize_mode)
        return converted
    if settings.attention == "full":
        _check_unset(settings, _OF_SLOTS, "with full attention")
    fields = _given(settings, (*_OF_NEW_PROJECTIONS, "max_position_embeddings"))
    with renamed("model", "source"):
        model_type = read_config(settings.source, f"model: expected {ENCODER}, got {settings.source}").model_type
    if model_type == LinformerConfig.model_type:
        return convert_full_attention(settings.source, fields, settings.resize_mode)
    if model_type not in MODEL_TYPES:
        known = ", ".join([*MODEL_TYPES, LinformerConfig.model_type])
        raise InputError(
            f"{settings.source}: expected a model of type {known}, got {model_type}; --in_place takes other types too"
        )
    return convert_encoder(settings.source, fields, settings.resize_mode)


def _linearized(settings: ConvertSettings) -> Converted:
    """The source linearised in place."""
    _check_unset(settings, ("attention",), "with in_place")
    if _is_fairseq(settings.source):
        raise InputError(f"source: expected an encoder of transformers with in_place, got {settings.source}")
    given = _given(settings, _IN_PLACE)
    advised: list[str] = []
    with renamed("model", "source"):
        model = load_pretrained(settings.source, auto_class_of(settings.source, ENCODER), ENCODER)
        learned = isinstance(model, LinearizedModel)
        if learned and given.keys() == {"max_position_embeddings"}:
            _resize(model, settings.max_position_embeddings, settings.resize_mode)
        else:
            advised = [] if settings.adapter else adapters_of(model, settings.max_position_embeddings)
            linear = LinearizeSettings(**given, resize_mode=settings.resize_mode)
            model = linearize_encoder(model, linear, settings.adapter)
        return Converted(model, [], learned or settings.adapter is not None, advised)


def _given(settings: ConvertSettings, names: Sequence[str]) -> dict[str, Any]:
    """Those of the settings that have a value."""
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def _check_unset(settings: ConvertSettings, names: Sequence[str], why: str) -> None:
    for name, value in _given(settings, names).items():
        raise InputError(f"{name}: expected none {why}, got {value!r}")


def convert_full_attention(source: str, fields: Mapping[str, Any], resize_mode: ResizeMode) -> Converted:
    """Make a Linformer of a Transformer of this package, with all of its weights.

    Args:
        source: Folder or hub id.
        fields: Fields of `LinformerConfig` that differ from the source's; attention is `linformer` unless given.
        resize_mode: How positions are resized for another max_position_embeddings.

    Returns:
        The model, in evaluation mode, of the source's class; if its attention is linear, E and F are those of a new
        model.
    """
    with renamed("model", "source"):
        model: Any = load_pretrained(source, auto_class_of(source, _KIND), _KIND)
    if model.config.attention != "full":
        raise InputError(f"source: expected a model with full attention, got a Linformer in {source}")
    longest = fields.get("max_position_embeddings")
    if longest is not None and longest != model.config.max_position_embeddings:
        _resize(model, longest, resize_mode)  # now, so that E and F start as in any model of the new length
    usual = LinformerConfig()
    new: dict[str, Any] = {name: getattr(usual, name) for name in _SLOT_FIELDS}
    new["projected_dim"] = min(usual.projected_dim, model.config.max_position_embeddings)
    kept = model.config.to_dict() | new | {"attention": "linformer"}
    config = LinformerConfig.from_dict(kept | dict(fields))
    return Converted(build_model(type(model), config, model.state_dict(), source, new_projections=True), [])


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
    if settings.tokenizer is None and (_is_fairseq(source) or not _has_tokenizer(source)):
        return None
    with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
        tokenizer = tokenizer_for(model, source)
    if len(tokenizer) == len(set(tokenizer.all_special_ids)):  # transformers builds one without any files
        raise InputError(f"tokenizer: expected a tokenizer, got {source}, which has no vocabulary")
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    tokenizer.model_max_length = longest if _changes_length(settings) else input_length(model, tokenizer, None)
    return tokenizer


def _changes_length(settings: ConvertSettings) -> bool:
    return settings.adapter is not None or settings.max_position_embeddings is not None


def _has_tokenizer(source: str) -> bool:
    return any(cached_file(source, name, **_IF_THERE) for name in TOKENIZER_FILES)
