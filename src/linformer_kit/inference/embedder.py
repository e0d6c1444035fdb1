"""Encoders as text embedders: the mean of the hidden states, normalised to length 1."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.environment import best_device, use_bf16
from linformer_kit.errors import InputError, renamed
from linformer_kit.inference.batches import batches, reads_padding
from linformer_kit.inference.outputs import check_finite, text_errors
from linformer_kit.interop.loading import input_length, load_model

_KIND = "an encoder of texts"
_DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


class BatchSettings(Protocol):
    """The settings of a forward pass."""

    batch_size: int
    dtype: Literal["auto", "float32", "bfloat16"]
    bf16: Literal["auto", "true", "false"]


class Embedder:
    """An encoder whose embeddings are the mean of its hidden states, normalised to length 1.

    Args:
        model: The encoder; it is moved to the best device.
        tokenizer: Its tokenizer.
        settings: Texts per forward pass, data type of the weights, and mixed precision.

    Attributes:
        longest: Maximum input length in tokens.
        width: Size of the embeddings.

    Raises:
        InputError: for bf16 mixed precision with weights in float16.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: BatchSettings) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.device = best_device()
        self.model.to(self.device, _DTYPES[settings.dtype])
        self.longest = input_length(self.model, self.tokenizer, None)
        self.width: int = self.model.config.hidden_size
        self.batch_size = settings.batch_size
        dtype = self.model.dtype
        bf16 = use_bf16(settings.bf16, on_cpu=self.device.type == "cpu", fp16=dtype == torch.float16)
        self.bf16 = bf16 and dtype == torch.float32

    def embed(self, texts: Sequence[tuple[str, str | None]], what: str, *, length: int | None = None) -> np.ndarray:
        """Embeddings, `[texts, embed]`, of texts truncated to the longest input or to a length in tokens."""
        encoded = Encoder(self.tokenizer, length or self.longest)(texts)
        return self.embed_windows([text.windows[0] for text in encoded], what)

    def embed_windows(self, windows: Sequence[Window], what: str | None = None) -> np.ndarray:
        """Embeddings, `[windows, embed]`, of tokenised texts; `what` describes them in a progress bar."""
        vectors = np.empty((len(windows), self.width), dtype=np.float32)
        chosen = list(batches(windows, self.batch_size, equal_lengths=self._equal_lengths))
        for batch in tqdm(chosen, desc=what, unit="batch", dynamic_ncols=True, delay=2, disable=what is None):
            vectors[batch] = self._embed([windows[index] for index in batch], bf16=self.bf16)
        return vectors

    @functools.cached_property
    def _equal_lengths(self) -> bool:
        """Whether batches must hold texts of equal length; found by running the model."""
        encoder, half = Encoder(self.tokenizer, self.longest), self.model.dtype != torch.float32
        return reads_padding(lambda windows: self._embed(windows, bf16=False), encoder, half=half)

    @torch.inference_mode()
    def _embed(self, windows: Sequence[Window], *, bf16: bool) -> np.ndarray:
        """Embeddings of one batch."""
        batch = self.tokenizer.pad({"input_ids": [window["input_ids"] for window in windows]}, return_tensors="pt")
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16), text_errors():
            hidden = self.model(**batch)[0]
        vectors = mean_embedding(hidden, batch["attention_mask"] != 0)
        found = torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()
        check_finite(found, "hidden states")
        return found


def load_embedder(name: str, settings: BatchSettings, *, field: str = "models") -> Embedder:
    """The embedder of a folder or hub id.

    Args:
        name: Folder or hub id of an encoder.
        settings: As for `Embedder`.
        field: The setting that names the model, for errors.

    Raises:
        InputError: as `load_model`, for bf16 mixed precision with `dtype` bfloat16 or weights in float16, and for a
            model with a decoder or without an attention mask.
    """
    if settings.dtype == "bfloat16" and settings.bf16 == "true":
        raise InputError("bf16: expected auto or false with dtype bfloat16, got true")
    with renamed("model", field):
        model, tokenizer = load_model(name, AutoModel, _KIND)
        if model.config.is_encoder_decoder:
            raise InputError(f"model: expected {_KIND}, got {type(model).__name__}, an encoder with a decoder")
        if not hasattr(model.config, "hidden_size"):
            raise InputError(
                f"model: expected {_KIND}, got {type(model).__name__}, whose hidden states have no one size"
            )
        if "attention_mask" not in tokenizer.model_input_names:
            raise InputError(f"model: expected {_KIND} with an attention mask, got {type(model).__name__}")
        return Embedder(model, tokenizer, settings)


def mean_embedding(
    hidden: Float[Tensor, "batch seq_len embed"], real: Bool[Tensor, "batch seq_len"]
) -> Float[Tensor, "batch embed"]:
    """Mean of the hidden states of real tokens, as in sentence embedding models."""
    each = real[..., None].float()
    return (hidden.float() * each).sum(dim=1) / each.sum(dim=1).clamp(min=1)
