"""Models in their folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.errors import error_text, failure_kind, machine_failure
from linformer_kit.files.manifest import MANIFEST, write_manifest
from linformer_kit.files.writing import PART, flush, remove_tree


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    beside: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Put a model and its tokenizer into a folder, with a manifest, which stands there only beside what it lists.

    Args:
        model: The model.
        tokenizer: The tokenizer.
        folder: Where they go.
        beside: Writes what else belongs to the model.

    Raises:
        InputError: if they cannot be written; nothing is left of them then, and checkpoints are as they were.
        MachineError: likewise, if it is the machine that failed, as when the disk is full.
        OutOfMemoryError: likewise, if memory ran out.
    """
    part = folder / f".model{PART}"
    remove_tree(part)
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        beside(part)
        write_manifest(part)
    except Exception as error:
        remove_tree(part)
        got = machine_failure(error) or error_text(error)
        raise failure_kind(error)(
            f"{folder}: expected to be able to write the model, got: {got}; checkpoints are as they were"
        ) from error
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in sorted(part.iterdir(), key=lambda path: path.name == MANIFEST):  # which goes last
        if path.is_dir():
            remove_tree(folder / path.name)
        os.replace(path, folder / path.name)
    part.rmdir()
    flush(folder)
