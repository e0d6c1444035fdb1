"""Encoders as embedders of texts, by sentence-transformers: prompt, pooling and normalisation as the folder says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import is_local_path
from linformer_kit.data.tokenizer import Window
from linformer_kit.environment import WEIGHT_DTYPES, device_of
from linformer_kit.inference.batches import TextModel
from linformer_kit.interop.checkpoints.sentences import check_no_pickle
from linformer_kit.interop.loading import check_finite_weights, load_model
from linformer_kit.linearized.linearize import optimize, text_encoder
from linformer_kit.models.base import LinearModel, longest_input

_KIND = "an encoder of texts"

logger = logging.getLogger(__name__)


class Embedder(TextModel):
    """A `SentenceTransformer` whose batches hold texts with similar numbers of tokens.

    Args:
        sentences: The embedder; it is moved to the device.
        batch_size: Texts per forward pass.
        dtype: Data type of the weights: auto (as they are), float32 or bfloat16.
        autocast, device: As for `TextModel`.

    Attributes:
        unpooled: Number of first tokens, special ones and the prompt, that the model does not pool.
        longest: Longest input of the encoder in tokens.
        width: Size of the embeddings.
    """

    def __init__(
        self,
        sentences: SentenceTransformer,
        *,
        batch_size: int,
        dtype: str = "auto",
        autocast: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
    ) -> None:
        self.sentences = sentences.to(device_of(device), WEIGHT_DTYPES[dtype]).eval()
        optimize(sentences)
        super().__init__(text_encoder(sentences), sentences.tokenizer, None, batch_size, autocast, device)
        self.prompt = sentences.prompts.get(sentences.default_prompt_name or "") or ""
        pooled = all(getattr(module, "include_prompt", True) for module in sentences)
        features = {} if pooled or not self.prompt else sentences.preprocess(["a"], prompt=self.prompt)
        self.unpooled = int(features.get("prompt_length", 0))
        self.width = int(sentences.get_embedding_dimension() or 0)
        self.longest = longest_input(self.model) or self.limit

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of texts, float32 `[texts, width]`."""
        return self([(text, None) for text in texts])[0][:, : self.sentences.truncate_dim]

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        return self.vectors(self.sentences(dict(self.pad(windows)) | {"prompt_length": self.unpooled}))

    def vectors(self, outputs: dict[str, Any]) -> np.ndarray:
        """The embeddings before they are cut to `width`, float32 `[texts, …]`, among the outputs of the modules."""
        return outputs["sentence_embedding"].float().cpu().numpy()


def load_embedder(name: str, *, device: str | None = None, **options: Any) -> Embedder:
    """The embedder of a folder or hub id, with or without files of sentence-transformers; options as for `Embedder`.

    Raises:
        InputError: for a device that is not available, a model with a decoder or without an attention mask, and files
            that are malformed, pickled, or name foreign code.
    """
    available = device_of(device)
    described = check_no_pickle(name)
    # sentence-transformers would load a model without some of its weights, so its files are checked first.
    model, tokenizer, *_ = load_model(name, AutoModel, _KIND, on_meta=True)
    kind = type(model).__name__
    if model.config.is_encoder_decoder:
        raise InputError(f"model: expected {_KIND}, got {kind}, an encoder with a decoder")
    if "attention_mask" not in tokenizer.model_input_names:
        raise InputError(f"model: expected {_KIND} with an attention mask, got {kind}")
    with input_errors(f"model: expected {_KIND}, got {name}"):
        safe: dict[str, Any] = {"use_safetensors": True}
        sentences = SentenceTransformer(name, device="cpu", model_kwargs=safe, local_files_only=is_local_path(name))
        for option in ("model_input_names", "padding_side"):
            setattr(sentences.tokenizer, option, getattr(tokenizer, option))
    if "message" in sentences.modalities:
        raise InputError(f"model: expected {_KIND}, got {kind}, which reads messages of a chat")
    encoder = text_encoder(sentences)
    check_finite_weights(encoder, name)
    if isinstance(encoder, LinearModel) and encoder.is_untrained():
        logger.warning("%s: E and F were never trained: the embeddings mean nothing yet", name)
    if not described:
        pooling = getattr(sentences[-1], "pooling_mode", "no")
        logger.warning("%s: a plain encoder (no modules.json): embedded with %s pooling", name, pooling)
    return Embedder(sentences, device=available, **options)
