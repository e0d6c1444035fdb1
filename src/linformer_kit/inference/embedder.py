"""Encoders as embedders of texts, by sentence-transformers: prompt, pooling and normalisation as the folder says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from linformer_cli.errors import InputError, input_errors, renamed
from linformer_cli.settings import is_local_path
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import best_device
from linformer_kit.inference.batches import Batches, BatchSettings, Run
from linformer_kit.interop.checkpoints.sentences import check_no_pickle
from linformer_kit.interop.loading import input_length, load_model
from linformer_kit.linearized.linearize import text_encoder
from linformer_kit.models.base import longest_input

_KIND = "an encoder of texts"
_DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}

logger = logging.getLogger(__name__)


class ForwardSettings(BatchSettings, Protocol):
    """The settings of forward passes, and the data type of the weights."""

    dtype: Literal["auto", "float32", "bfloat16"]


class Embedder:
    """A `SentenceTransformer` whose batches hold texts with similar numbers of tokens.

    Args:
        sentences: The embedder; it is moved to the best device.
        settings: Texts per forward pass, data type of the weights, and mixed precision.

    Attributes:
        model: Its encoder.
        prompt: What precedes each text.
        unpooled: Number of first tokens, special ones and the prompt, that the model does not pool.
        longest: Longest input of the encoder in tokens; texts are truncated to `limit`.
        width: Size of the embeddings.
        cut: Number of texts that were truncated so far.

    Raises:
        InputError: for bf16 mixed precision with weights in float16.
    """

    def __init__(self, sentences: SentenceTransformer, settings: ForwardSettings) -> None:
        self.device = best_device()
        self.sentences = sentences.to(self.device, _DTYPES[settings.dtype]).eval()
        self.model, self.tokenizer = text_encoder(sentences), sentences.tokenizer
        self.prompt: str = sentences.prompts.get(sentences.default_prompt_name or "") or ""
        pooled = all(getattr(module, "include_prompt", True) for module in sentences)
        features = {} if pooled or not self.prompt else sentences.preprocess(["a"], prompt=self.prompt)
        self.unpooled = int(features.get("prompt_length", 0))
        self.width = int(sentences.get_embedding_dimension() or 0)
        self.cut = 0
        self._batches = Batches(self.model, self.tokenizer, settings, self._pass)
        self.bf16 = self._batches.bf16
        self.truncate(None)
        self.longest = longest_input(self.model) or self.limit

    def truncate(self, max_length: int | None) -> None:
        """Set the number of tokens to which texts are truncated; None: the folder's limit, at most the encoder's."""
        self.limit = input_length(self.model, self.tokenizer, max_length)
        self._encoder = Encoder(self.tokenizer, self.limit)

    def embed(self, texts: Sequence[str], what: str | None = None) -> np.ndarray:
        """Embeddings of texts, float32 `[texts, width]`; `what` describes them in a progress bar."""
        encoded = self._encoder([(self.prompt + text, None) for text in texts])
        self.cut += sum(text.lost > 0 for text in encoded)
        return self.embed_windows([text.window for text in encoded], what)

    def embed_windows(self, windows: Sequence[Window], what: str | None = None) -> np.ndarray:
        """As `embed`, for tokenised texts with special tokens and prompt."""
        return self.by_length(windows, lambda batch: self._pass([windows[n] for n in batch], self.unpooled), what)

    def by_length(self, windows: Sequence[Window], run: Run, what: str | None = None) -> np.ndarray:
        """Rows of `run`, float32 `[rows, width]`, of batches of similar length, in the order of the windows."""
        rows = map(np.atleast_2d, self._batches(windows, run, what))
        return np.concatenate([np.empty((0, self.width)), *rows], dtype=np.float32)

    def features(self, windows: Sequence[Window]) -> dict[str, Any]:
        """Inputs of the modules for one batch of tokenised texts."""
        return dict(self._batches.pad(windows))

    def vectors(self, outputs: dict[str, Any]) -> np.ndarray:
        """The embeddings, float32 `[texts, width]`, among the outputs of the modules."""
        return outputs["sentence_embedding"][:, : self.sentences.truncate_dim].float().cpu().numpy()

    def _pass(self, windows: Sequence[Window], unpooled: int = 0) -> np.ndarray:
        return self.vectors(self.sentences(self.features(windows) | {"prompt_length": unpooled}))


def load_embedder(name: str, settings: ForwardSettings, *, field: str = "models") -> Embedder:
    """The embedder of a folder or hub id.

    Args:
        name: Folder or hub id of an encoder, with or without the files of sentence-transformers.
        settings: As for `Embedder`.
        field: The setting that names the model, for errors.

    Raises:
        InputError: as `load_model` and `Embedder`, for bf16 mixed precision with `dtype` bfloat16, a model with a
            decoder or without an attention mask, and files that are malformed, pickled, or name foreign code.
    """
    if settings.dtype == "bfloat16" and settings.bf16 == "true":
        raise InputError("bf16: expected auto or false with dtype bfloat16, got true")
    with renamed("model", field):
        described = check_no_pickle(name)
        # sentence-transformers would load a model without some of its weights.
        model, tokenizer = load_model(name, AutoModel, _KIND)
        if model.config.is_encoder_decoder:
            raise InputError(f"model: expected {_KIND}, got {type(model).__name__}, an encoder with a decoder")
        if "attention_mask" not in tokenizer.model_input_names:
            raise InputError(f"model: expected {_KIND} with an attention mask, got {type(model).__name__}")
        with input_errors(f"model: expected {_KIND}, got {name}"):
            local = is_local_path(name)
            safe = {"use_safetensors": True}
            sentences = SentenceTransformer(name, device="cpu", model_kwargs=safe, local_files_only=local)
            for option in ("model_input_names", "padding_side"):
                setattr(sentences.tokenizer, option, getattr(tokenizer, option))
        if "message" in sentences.modalities:
            raise InputError(f"model: expected {_KIND}, got {type(model).__name__}, which reads messages of a chat")
        embedder = Embedder(sentences, settings)
    if not described:
        pooling = getattr(sentences[-1], "pooling_mode", "no")
        logger.warning("%s: a plain encoder (no modules.json): embedded with %s pooling", name, pooling)
    return embedder
