"""Encoders inside an embedder of sentence-transformers, and encoders that were loaded without the rest of one."""

from __future__ import annotations

import functools
import logging
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import cached_file

from linformer_cli.errors import InputError

logger = logging.getLogger(__name__)


def text_encoder(model: Any) -> PreTrainedModel:
    """The encoder of texts that a `SentenceTransformer` starts with."""
    from sentence_transformers import SentenceTransformer  # its import takes seconds
    from sentence_transformers.sentence_transformer.modules import Transformer

    if not isinstance(model, SentenceTransformer):
        raise InputError(f"model: expected one of transformers, or a SentenceTransformer, got {type(model).__name__}")
    if not isinstance(model[0], Transformer) or not model.supports("text"):
        first = type(model[0]).__name__
        raise InputError(f"model: expected a SentenceTransformer that starts with a Transformer of texts, got {first}")
    return model[0].model


def warn_of_bare_encoder(model: PreTrainedModel) -> None:
    """Warn of an encoder without a head that was loaded from the folder of an embedder of sentence-transformers."""
    if model.base_model is model and model.name_or_path:
        _warn(model.name_or_path)


@functools.cache  # once for each model
def _warn(name: str) -> None:
    try:
        cached_file(name, "modules.json", local_files_only=True)
    except OSError:  # it has none, or its folder is gone
        return
    logger.warning(
        "%s: pooling, normalisation, prompts and max_seq_length of sentence-transformers are left behind; "
        "linearize(SentenceTransformer(%r)) keeps them",
        *(name, name),
    )
