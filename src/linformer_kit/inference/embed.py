"""Embed any number of texts, in order, in one array on disk, by sentence-transformers.

Prompt, pooling and normalisation are those that the model's folder describes. The mean of pieces reads a long text
whole with an encoder of few positions; a text of one piece has the vector that it has otherwise.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import AutoModel

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import EmbedSettings, is_local_path
from linformer_kit.data.read import TextColumns
from linformer_kit.data.tokenizer import EncodedText, Window, tokenizer_fingerprint
from linformer_kit.inference.batches import Group, TextModel
from linformer_kit.inference.output import InputTexts, OutputFile
from linformer_kit.interop.checkpoints import check_no_pickle
from linformer_kit.interop.loading import check_finite_weights, load_model, model_fingerprint
from linformer_kit.linearized.linearize import optimize, text_encoder
from linformer_kit.models.base import LinearModel, longest_input
from linformer_kit.report.environment import WEIGHT_DTYPES, device_of

_NUMBER = np.dtype("<f4")
_KIND = "an encoder of texts"

logger = logging.getLogger(__name__)


def main(settings: EmbedSettings) -> None:
    """Embed the texts of files; write them as a float32 array `[texts, width]` in NumPy's format.

    Row i is the embedding of text i, as sentence-transformers computes it from the model's folder. The rows of each
    file are in `OUTPUT.run.json`, and printed if there are several files.

    Raises:
        InputError: for files that cannot be read (nothing is written) and a model that is no embedder of texts.
    """
    texts = InputTexts(settings, first_row=0)
    output = OutputFile(settings, texts)
    texts.find(TextColumns(settings.text_column or "text"), document=settings.document)
    embedder = load_embedder(
        settings.model, batch_size=settings.batch_size, dtype=settings.dtype, device=settings.device
    )
    embedder.truncate(settings.max_length)
    embedder.pieces = settings.pieces
    # Raises an error without room for text; of a prompt, a text may take over the last token.
    list(embedder.encode([("", None), ("a", None)]))
    identity = {
        "model_fingerprint": model_fingerprint(embedder.sentences),
        "tokenizer_fingerprint": tokenizer_fingerprint(embedder.tokenizer),
        "modules": [repr(module) for module in embedder.sentences],
        "prompt": embedder.prompt,
        "max_length": embedder.limit,
    }

    def content(group: Group, done: int) -> tuple[bytes, dict[str, int]]:
        return group.rows.astype(_NUMBER).tobytes(), {}

    progress = output.write(embedder, identity, content, _header(texts.total, embedder.width))
    print(f"{texts.total:,} texts, {embedder.width} numbers each, in {settings.out}", file=sys.stderr)
    if progress.truncated:
        longer = f"{progress.truncated:,} texts of more than {embedder.limit:,} tokens were truncated"
        print(f"{longer}; --pieces reads whole texts", file=sys.stderr)
    print(texts.rows_by_file(), end="", file=sys.stderr)


def _header(rows: int, width: int) -> bytes:
    """The start of a file in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _NUMBER.str, "fortran_order": False, "shape": (rows, width)})
    return header.getvalue()


class Embedder(TextModel):
    """A `SentenceTransformer` whose batches hold texts with similar numbers of tokens.

    Args:
        sentences: The embedder; it is moved to the device.
        batch_size: Texts, or pieces of them, per forward pass.
        dtype: Data type of the weights: auto (as they are), float32 or bfloat16.
        device: As for `TextModel`.

    Attributes:
        pieces: As of `TextModel`; the mean is normalised if the model's embeddings are.
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
        device: str | torch.device | None = None,
    ) -> None:
        self.sentences = sentences.to(device_of(device), WEIGHT_DTYPES[dtype]).eval()
        optimize(sentences)
        super().__init__(text_encoder(sentences), sentences.tokenizer, None, batch_size, device)
        self.prompt = sentences.prompts.get(sentences.default_prompt_name or "") or ""
        pooled = all(getattr(module, "include_prompt", True) for module in sentences)
        features = {} if pooled or not self.prompt else sentences.preprocess(["a"], prompt=self.prompt)
        self.unpooled = int(features.get("prompt_length", 0))
        self.width = int(sentences.get_embedding_dimension() or 0)
        self.longest = longest_input(self.model) or self.limit

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of texts, one or more, float32 `[texts, width]`."""
        return self([(text, None) for text in texts]).rows

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        outputs = self.sentences(dict(self.pad(windows)) | {"prompt_length": self.unpooled})
        return outputs["sentence_embedding"].float().cpu().numpy()

    def combine(self, outputs: np.ndarray, texts: Sequence[EncodedText]) -> np.ndarray:
        """The embeddings, normalised and cut to `width` as sentence-transformers does: after they are normalised."""
        means = super().combine(outputs, texts)
        if self.pieces and isinstance(self.sentences[-1], Normalize):
            means = means / np.linalg.norm(means, axis=1, keepdims=True)
        return means[:, : self.sentences.truncate_dim]


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
