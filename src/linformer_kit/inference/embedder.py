"""Encoders as embedders of texts, by sentence-transformers: prompt, pooling and normalisation as the folder says."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from tqdm import tqdm
from transformers import AutoModel

from linformer_kit.data.encoding import Encoder, Window
from linformer_kit.environment import best_device, use_bf16
from linformer_kit.errors import InputError, input_errors, renamed
from linformer_kit.inference.batches import batches, check_finite, reads_padding, text_errors
from linformer_kit.interop.checkpoints.sentences import check_no_pickle
from linformer_kit.interop.loading import input_length, load_model
from linformer_kit.linearized.sentences import text_encoder
from linformer_kit.models.positions import longest_input
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.settings import is_local_path

_KIND = "an encoder of texts"
_DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}

Run = Callable[[list[int]], Iterable[np.ndarray]]  # a forward pass: numbers of texts -> the rows of each

logger = logging.getLogger(__name__)


class BatchSettings(Protocol):
    """The settings of a forward pass."""

    batch_size: int
    dtype: Literal["auto", "float32", "bfloat16"]
    bf16: Literal["auto", "true", "false"]


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

    def __init__(self, sentences: SentenceTransformer, settings: BatchSettings) -> None:
        self.device = best_device()
        self.sentences = sentences.to(self.device, _DTYPES[settings.dtype]).eval()
        self.model, self.tokenizer = text_encoder(sentences), sentences.tokenizer
        self.prompt: str = sentences.prompts.get(sentences.default_prompt_name or "") or ""
        pooled = all(getattr(module, "include_prompt", True) for module in sentences)
        features = {} if pooled or not self.prompt else sentences.preprocess(["a"], prompt=self.prompt)
        self.unpooled = int(features.get("prompt_length", 0))
        self.width = int(sentences.get_embedding_dimension() or 0)
        self.batch_size = settings.batch_size
        self.cut = 0
        self.truncate(None)
        self.longest = longest_input(self.model) or self.limit
        dtype = self.model.dtype
        bf16 = use_bf16(settings.bf16, on_cpu=self.device.type == "cpu", fp16=dtype == torch.float16)
        self.bf16 = bf16 and dtype == torch.float32

    def truncate(self, max_length: int | None) -> None:
        """Set the number of tokens to which texts are truncated; None: the folder's limit, at most the encoder's."""
        self.limit = input_length(self.model, self.tokenizer, max_length)
        self.sentences.max_seq_length = self.limit
        self._encoder = Encoder(self.tokenizer, self.limit)

    def embed(self, texts: Sequence[str], what: str | None = None) -> np.ndarray:
        """Embeddings of texts, float32 `[texts, width]`; `what` describes them in a progress bar."""
        encoded = self._encoder([(self.prompt + text, None) for text in texts])
        self.cut += sum(text.lost > 0 for text in encoded)
        return self.embed_windows([text.windows[0] for text in encoded], what)

    def embed_windows(self, windows: Sequence[Window], what: str | None = None) -> np.ndarray:
        """As `embed`, for tokenised texts with special tokens and prompt."""
        return self.by_length(windows, lambda batch: self._pass([windows[n] for n in batch], self.unpooled), what)

    @torch.inference_mode()
    def by_length(self, windows: Sequence[Window], run: Run, what: str | None = None) -> np.ndarray:
        """Rows of `run`, float32 `[rows, width]`, of batches of similar length, in the order of the windows."""
        found: list[Any] = [None] * len(windows)
        chosen = batches(windows, self.batch_size, equal_lengths=bool(windows) and self._equal_lengths)
        for batch in tqdm(list(chosen), desc=what, unit="batch", dynamic_ncols=True, delay=2, disable=what is None):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16), text_errors():
                outputs = run(batch)
            for index, output in zip(batch, outputs, strict=True):
                check_finite(output, "embeddings")
                found[index] = np.atleast_2d(output)
        return np.concatenate([np.empty((0, self.width)), *found], dtype=np.float32)

    def features(self, windows: Sequence[Window]) -> dict[str, Any]:
        """Inputs of the modules for one batch of tokenised texts."""
        return dict(self.tokenizer.pad(list(windows), return_tensors="pt").to(self.device))

    def vectors(self, outputs: dict[str, Any]) -> np.ndarray:
        """The embeddings, float32 `[texts, width]`, among the outputs of the modules."""
        return outputs["sentence_embedding"][:, : self.sentences.truncate_dim].float().cpu().numpy()

    def _pass(self, windows: Sequence[Window], unpooled: int = 0) -> np.ndarray:
        return self.vectors(self.sentences(self.features(windows) | {"prompt_length": unpooled}))

    @functools.cached_property
    def _equal_lengths(self) -> bool:
        """Whether batches must hold texts of equal length; found by running the model."""
        return reads_padding(self._pass, self._encoder, half=self.model.dtype != torch.float32)


def load_embedder(name: str, settings: BatchSettings, *, field: str = "models") -> Embedder:
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
    if any(map(_is_untrained, embedder.model.modules())):
        logger.warning("%s: E and F are untrained, so its embeddings mean little: distil it or train it further", name)
    return embedder


def _is_untrained(module: nn.Module) -> bool:
    """Whether it is a learned E and F with the values that a new one starts with, unless they are random."""
    if not isinstance(module, SequenceProjection) or not module.matrix_count():
        return False
    pairs = ((getattr(module, name), new) for name, new in module.initial_values().items())
    return all(torch.equal(value, new.to(value)) for value, new in pairs)
