"""Embedders of length 1, longer copies of encoders, and the accuracy of a logistic regression on embeddings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from sentence_transformers.sentence_transformer.modules import Normalize
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

from linformer_kit.errors import renamed
from linformer_kit.inference.embedder import BatchSettings, Embedder, load_embedder
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.positions import check_positions, longest_input, set_positions
from linformer_kit.models.modeling import LinformerPreTrainedModel
from linformer_kit.settings import ResizeMode

Features = tuple[np.ndarray, Sequence[Any]]  # embeddings, [texts, embed], and the class of each text


def load_unit_embedder(name: str, settings: BatchSettings, *, field: str = "models") -> Embedder:
    """As `load_embedder`; also a plain encoder's embeddings have length 1."""
    embedder = load_embedder(name, settings, field=field)
    if not isinstance(embedder.sentences[-1], Normalize):
        embedder.sentences.append(Normalize())
    return embedder


def lengthened(model: PreTrainedModel, length: int, mode: ResizeMode = "interpolate") -> PreTrainedModel:
    """The model itself if it takes inputs of this length in tokens, else a longer copy.

    Args:
        model: Any encoder, linear or not.
        length: Number of tokens.
        mode: How positions are resized.

    Raises:
        InputError: for a model that cannot be resized to this length.
    """
    if (longest_input(model) or length) >= length:
        return model
    model = copy.deepcopy(model)
    with renamed("seq_len", "lengths"), renamed("mode", "resize_mode"):
        if isinstance(model, (LinearizedModel, LinformerPreTrainedModel)):
            model.resize_sequence_length(length, mode=mode)
        else:
            check_positions(model, length, mode)
            set_positions(model, length, mode)
    return model


def regression_accuracy(train: Features, validation: Features) -> float:
    """Validation accuracy of a logistic regression on embeddings."""
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=0.1))
    classifier.fit(*train)
    features, classes = validation
    return float((classifier.predict(features) == np.array(classes)).mean())
