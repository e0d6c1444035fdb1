"""Length limits in files beside a saved model: those of its tokenizer and of sentence-transformers, which cut texts.

Resizing a model does not change them, so texts are cut at the old length until these files are updated.
"""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from linformer_kit.errors import InputError
from linformer_kit.settings import read_yaml

# Files and the field in each that cuts; without the first, nothing does.
TOKENIZER_LIMIT = ("tokenizer_config.json", "model_max_length")
SENTENCE_LIMIT = ("sentence_bert_config.json", "max_seq_length")

logger = logging.getLogger(__name__)


def shorter_limits(folder: Path, longest: int) -> dict[str, float]:
    """Limits under the longest input of a model, by what they are and where; none unless the tokenizer has one.

    A limit of sentence-transformers alone is a choice of the model's author.
    """
    found = {place: _read(folder / place[0]).get(place[1]) for place in (TOKENIZER_LIMIT, SENTENCE_LIMIT)}
    shorter = {place: limit for place, limit in found.items() if isinstance(limit, (int, float)) and limit < longest}
    return {f"{name} in {file}": limit for (file, name), limit in shorter.items()} if TOKENIZER_LIMIT in shorter else {}


class LengthCheckedModel(PreTrainedModel):
    """A model that warns on loading if files beside it cut texts that it would accept."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **named: Any) -> Any:
        """As of transformers."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *arguments, **named)
        config = (loaded[0] if isinstance(loaded, tuple) else loaded).config
        longest = config.linformer["seq_len"] if hasattr(config, "linformer") else config.max_position_embeddings
        _warn(str(pretrained_model_name_or_path), str(named.get("subfolder") or ""), longest)
        return loaded


@functools.cache  # once for each folder: a model may be loaded several times
def _warn(name: str, subfolder: str, longest: int) -> None:
    folder = Path(name) / subfolder
    if folder.is_dir() and (limits := shorter_limits(folder, longest)) and not _asked_for(folder):
        listed = ", ".join(f"{what}: {limit}" for what, limit in limits.items())
        logger.warning(
            "%s: the model takes %s tokens and texts are cut shorter, until these are set to as many: %s",
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
