"""`linformer linearize` and `linformer resize`: a pretrained encoder becomes linear in place, or another length."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors, renamed
from linformer_cli.output_paths import check_new_folder
from linformer_cli.settings import LinearizeCommandSettings, ResizeSettings
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints import optional_file, read_config, sentence_files, warn_of_left_out, write_files
from linformer_kit.interop.loading import Loaded, has_tokenizer, input_length, load_model, tokenizer_for
from linformer_kit.linearized.adapter import adapters_of
from linformer_kit.linearized.classes import EXACT
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import LinearModel, longest_input

_ENCODER = "a pretrained encoder"  # in errors
_IMAGE_PROCESSOR = "preprocessor_config.json"


def main(settings: LinearizeCommandSettings | ResizeSettings) -> None:
    """Make `model` linear, or a linear one longer, save it and its tokenizer in `out`, and print a summary.

    Raises:
        InputError: for a model that cannot be changed so, settings that do not fit it, or an `out` that is not empty.
            Nothing is written then.
    """
    out = check_new_folder("out", settings.out)
    if isinstance(settings, ResizeSettings):
        loaded, advice, new_length = _resized(settings), "", True
    else:
        loaded, advice = _linearized(settings)
        new_length = settings.max_position_embeddings is not None or settings.adapter is not None
    _save(loaded.model, out, settings.model, new_length=new_length)
    _describe(loaded, advice)
    print(f"Saved in {settings.out}")


def _resized(settings: ResizeSettings) -> Loaded:
    """A model of this package, or a linear encoder, with another longest sequence."""
    config = read_config(settings.model, f"model: expected {_ENCODER}, got {settings.model}")
    is_causal = "LinformerForCausalLM" in (config.architectures or ())
    auto_class = AutoModelForCausalLM if is_causal else None
    loaded = load_model(settings.model, auto_class, _ENCODER, config=config, to_run=False)
    if not isinstance(loaded.model, LinearModel):
        expected = "a model of this package, or a linear encoder (`linformer linearize` makes one)"
        raise InputError(f"model: expected {expected}, got {type(loaded.model).__name__}")
    with renamed("seq_len", "max_position_embeddings"), renamed("mode", "resize_mode"):
        loaded.model.resize_sequence_length(settings.max_position_embeddings, mode=settings.resize_mode)
    return loaded


def _linearized(settings: LinearizeCommandSettings) -> tuple[Loaded, str]:
    """The linear encoder, and how to train its slots; empty if there is nothing to train."""
    loaded = load_model(settings.model, None, _ENCODER, to_run=False)
    model, advice = loaded.model, ""
    if settings.adapter is None and settings.layers != []:
        kind = type(model).__name__
        is_distilled = model.main_input_name == "input_ids" and "QuestionAnswering" not in kind
        advice = "run `linformer distill`" if is_distilled else "continue training"
        if adapters := adapters_of(model, settings.max_position_embeddings):
            advice = f"add `--adapter {adapters[0]}`, which ships for this model, or {advice}"
    linearize_encoder(model, settings, settings.adapter)
    return loaded, advice


def _save(model: PreTrainedModel, out: Path, source: str, *, new_length: bool) -> None:
    """Save a model with the tokenizer, and other files that belong to it, of the folder or hub id it was made from.

    Args:
        model: The model.
        out: The new folder.
        source: Folder or hub id that the model was made from.
        new_length: Whether n is new, and so the limit of the tokenizer and of sentence-transformers.

    Raises:
        InputError: for an unsuitable tokenizer; nothing is written then.
    """
    longest = longest_input(model)
    extra_files = sentence_files(source, longer=longest if new_length else None)
    warn_of_left_out(source, extra_files)
    tokenizer = None if longest is None else _tokenizer(model, source)
    with whole_folder(out) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = longest if new_length else input_length(model, tokenizer, None)
            save_tokenizer(tokenizer, folder)
        elif longest is None and (images := optional_file(source, _IMAGE_PROCESSOR)):
            shutil.copy(images, folder)
        write_files(extra_files, folder)
        write_manifest(folder)
    if longest is not None and tokenizer is None:
        print("No tokenizer: the source has none.")


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


def _tokenizer(model: PreTrainedModel, source: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a source, if it has one."""
    if not has_tokenizer(source):
        return None
    with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
        tokenizer = tokenizer_for(model, source)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    return tokenizer
