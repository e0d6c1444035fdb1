"""The folder that `convert` and `linearize` make of a model, and what they print about it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.pretrained import optional_file
from linformer_kit.interop.checkpoints.sentences import Files, sentence_files, warn_of_left_out, write_files
from linformer_kit.interop.loading import Loaded, has_tokenizer, input_length, tokenizer_for
from linformer_kit.linearized.fields import EXACT
from linformer_kit.models.base import longest_input

_IMAGE_PROCESSOR = "preprocessor_config.json"


def save_folder(
    model: PreTrainedModel, out: Path, source: str, *, embeds: bool, new_length: bool, tokenizer: str | None = None
) -> None:
    """Save a model with the tokenizer, and other files that belong to it, of the folder or hub id it was made from.

    Args:
        model: The model.
        out: The new folder.
        source: Folder, hub id or fairseq file that the model was made from.
        embeds: Whether files of sentence-transformers are kept; a model with untrained E and F is no embedder.
        new_length: Whether n is new, and so the limit of the tokenizer and of sentence-transformers.
        tokenizer: Folder or hub id of another tokenizer.

    Raises:
        InputError: for an unsuitable tokenizer; nothing is written then.
    """
    longest = longest_input(model)
    extra_files: Files = {}
    if not is_fairseq(source):
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


def is_fairseq(source: str) -> bool:
    """Whether a source is a file, of fairseq, rather than a folder or hub id."""
    return os.path.isfile(source) or (source.endswith((".pt", ".pth", ".bin")) and not os.path.isdir(source))


def describe(loaded: Loaded, training: str) -> None:
    """Print the sizes, what is untrained, and which weights of the source were left out.

    Args:
        loaded: The model.
        training: Advice how to train what is new; empty if nothing is.
    """
    model = loaded.model
    config = model.config.to_dict()
    slots = config.get("linformer", config)
    attention = "full attention"
    if config.get("attention") != "full" and slots.get("layers") != []:
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
    if is_fairseq(source) or not has_tokenizer(source):
        if is_given:
            raise InputError(f"tokenizer: expected a tokenizer, got {source}, which has none")
        return None
    with input_errors(f"tokenizer: expected a tokenizer, got {source}"):
        tokenizer = tokenizer_for(model, source)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"tokenizer: expected at most {model.config.vocab_size} tokens, got {len(tokenizer)}")
    return tokenizer
