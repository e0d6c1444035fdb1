"""Length limits in the files of a saved model: its tokenizer and sentence-transformers truncate texts to them.

Resizing a model does not change them, so texts are truncated to the old length until these files are updated.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from linformer_kit.errors import InputError
from linformer_kit.models.card import write_card
from linformer_kit.settings import read_yaml

# The files and their field with the limit; without the first one, texts are not truncated.
TOKENIZER_LIMIT = ("tokenizer_config.json", "model_max_length")
SENTENCE_LIMIT = ("sentence_bert_config.json", "max_seq_length")

logger = logging.getLogger(__name__)


def shorter_limits(folder: Path, longest: int) -> dict[str, float]:
    """Limits below the longest input of a model, by field and file; empty unless the tokenizer has such a limit.

    A limit of sentence-transformers only is a choice of the model's author.
    """
    found = {place: _read(folder / place[0]).get(place[1]) for place in (TOKENIZER_LIMIT, SENTENCE_LIMIT)}
    shorter = {place: limit for place, limit in found.items() if isinstance(limit, (int, float)) and limit < longest}
    return {f"{name} in {file}": limit for (file, name), limit in shorter.items()} if TOKENIZER_LIMIT in shorter else {}


class LengthCheckedModel(PreTrainedModel):
    """A model that is saved with a README.md, and that warns on loading if saved length limits truncate its texts."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: Any, **named: Any) -> None:
        """As in transformers, with a README.md if the folder has none."""
        if arguments[0] if arguments else named.get("is_main_process", True):
            write_card(self, Path(save_directory), _longest(self.config))
        super().save_pretrained(save_directory, *arguments, **named)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **named: Any) -> Any:
        """As in transformers."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *arguments, **named)
        config = (loaded[0] if isinstance(loaded, tuple) else loaded).config
        _warn(str(pretrained_model_name_or_path), str(named.get("subfolder") or ""), _longest(config))
        return loaded


def _longest(config: PreTrainedConfig) -> int:
    """Longest input in tokens."""
    return config.linformer["seq_len"] if hasattr(config, "linformer") else config.max_position_embeddings


@functools.cache  # warn once for each folder: a model may be loaded several times
def _warn(name: str, subfolder: str, longest: int) -> None:
    folder = Path(name) / subfolder
    if folder.is_dir() and (limits := shorter_limits(folder, longest)) and not _asked_for(folder):
        listed = ", ".join(f"{what}: {limit}" for what, limit in limits.items())
        logger.warning(
            "%s: the model takes %s tokens, but these limits truncate texts to fewer: %s",
            *(folder, longest, listed),
        )


def _asked_for(folder: Path) -> bool:
    """Whether the tokenizer's limit is the `max_length` of the training settings saved in the folder."""
    try:
        asked = read_yaml(folder / "settings.yaml").get("max_length")
    except InputError:
        return False
    return asked is not None and asked == _read(folder / TOKENIZER_LIMIT[0]).get(TOKENIZER_LIMIT[1])


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
