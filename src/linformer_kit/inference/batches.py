"""Models of texts: texts in the order given → groups by tokens → batches by length → an output for each text.

A group is about half a minute of work. No output depends on the other texts of its batch.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors
from linformer_kit.data.read import Text, text_groups
from linformer_kit.data.tokenizer import EncodedText, Encoder, Window
from linformer_kit.interop.loading import input_length
from linformer_kit.report.environment import device_of

# Tokens of a group, times weights of the model without embeddings: about half a minute on two cores, and less on
# accelerators, where the most tokens are the limit: as many as fit in memory.
_CPU_WORK, _ACCELERATOR_WORK = 1 << 41, 1 << 48
_MOST_TOKENS = 1 << 20
# Texts or characters that are tokenised at a time.
_READ_TEXTS, _READ_CHARACTERS = 256, 1 << 22
# Differences beyond rounding, as a share of the largest output, by whether weights have half precision.
_BEYOND_ROUNDING = {False: 1e-3, True: 5e-2}
_SHORT, _LONG = "a", "a " * 20


class Group(NamedTuple):
    """What a model computes for consecutive texts."""

    rows: Float[np.ndarray, "texts width"]
    lost: Int[np.ndarray, " texts"]  # truncated tokens


class TextModel(ABC):
    """A model that computes an array for each text, in batches of similar length.

    A model whose outputs for a text depend on the padding beside it, as ConvBERT's do, gets one text at a time.

    Args:
        model: The model; it is moved to the device.
        tokenizer: Its tokenizer, which pads.
        max_length: Tokens at which texts are truncated; None: the longest input of model and tokenizer.
        batch_size: Texts per forward pass.
        device: The device; None: the accelerator if there is one.

    Attributes:
        prompt: What precedes each text.
        limit: Tokens at which texts are truncated.
        pieces: Whether texts are read as pieces of `limit` tokens instead. What is computed for a text is the mean over
            its pieces, weighted by their tokens.
    """

    prompt: str = ""
    pieces: bool = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None,
        batch_size: int,
        device: str | torch.device | None = None,
    ) -> None:
        self.device = device_of(device)
        self.model, self.tokenizer, self._batch_size = model.to(self.device), tokenizer, batch_size
        self.truncate(max_length)

    @abstractmethod
    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        """Outputs `[windows, …]` of one batch of tokenised texts."""

    def truncate(self, max_length: int | None) -> None:
        """Set the number of tokens at which texts are truncated."""
        self.limit = input_length(self.model, self.tokenizer, max_length)

    def encode(self, texts: Sequence[Text]) -> Iterator[EncodedText]:
        """Tokenise texts, of which all or none are pairs, each after the prompt; longer ones are truncated, or cut."""
        return Encoder(self.tokenizer, self.limit, pieces=self.pieces, prompt=self.prompt)(texts)

    def combine(self, outputs: np.ndarray, texts: Sequence[EncodedText]) -> Float[np.ndarray, "texts width"]:
        """A row for each text, from the outputs `[windows, …]` of all its windows."""
        if len(outputs) == len(texts):
            return outputs
        weights = np.concatenate([text.weights for text in texts]).astype(np.float32)[:, None]
        firsts = np.cumsum([0, *(len(text.windows) for text in texts[:-1])])
        return np.add.reduceat(outputs * weights, firsts) / np.add.reduceat(weights, firsts)

    def __call__(self, texts: Sequence[Text]) -> Group:
        """The outputs for texts, one or more, of which all or none are pairs."""
        return self._outputs(list(self.encode(texts)))

    def groups(
        self, texts: Iterable[Text], characters: int, before_batch: Callable[[], None] = lambda: None
    ) -> Iterator[Group]:
        """The outputs for groups of consecutive texts; a progress bar counts their tokens.

        Args:
            texts: The texts, of which all or none are pairs.
            characters: Their `size` in all, from which the bar estimates the number of their tokens.
            before_batch: Called before each batch.
        """
        read, tokens = 0, 0
        with tqdm(unit=" tokens", unit_scale=True, dynamic_ncols=True, delay=2) as bar:
            for group, length in self._in_groups(texts):
                read += length
                tokens += sum(text.tokens for text in group)
                bar.total = round(tokens * characters / read)
                yield self._outputs(group, before_batch, bar.update)

    def pad(self, windows: Sequence[Window]) -> BatchEncoding:
        """Inputs of the model for one batch."""
        return self.tokenizer.pad(list(windows), return_tensors="pt").to(self.device)

    def _in_groups(self, texts: Iterable[Text]) -> Iterator[tuple[list[EncodedText], int]]:
        """Groups of consecutive texts, tokenised, and their `size`; each has a full batch, unless texts end."""
        group: list[EncodedText] = []
        tokens, length = 0, 0
        for some in text_groups(texts, count=_READ_TEXTS, characters=_READ_CHARACTERS):
            for text, inputs in zip(some, self.encode(some), strict=True):
                group.append(inputs)
                tokens, length = tokens + inputs.tokens, length + size(text)
                if tokens >= self._group_tokens and len(group) >= self._batch_size:
                    yield group, length
                    group, tokens, length = [], 0, 0
        if group:
            yield group, length

    @functools.cached_property
    def _group_tokens(self) -> int:
        """Tokens after which a group ends."""
        work = _CPU_WORK if self.device.type == "cpu" else _ACCELERATOR_WORK
        return min(_MOST_TOKENS, work // max(1, self.model.num_parameters(exclude_embeddings=True)))

    @torch.inference_mode()
    def _outputs(
        self,
        texts: Sequence[EncodedText],
        before_batch: Callable[[], None] = lambda: None,
        after_batch: Callable[[int], Any] = lambda tokens: None,
    ) -> Group:
        """The outputs for tokenised texts, one or more; `after_batch` gets the number of tokens of each batch."""
        windows = [window for text in texts for window in text.windows]
        batch_size = 1 if len(windows) > 1 and self._reads_padding else self._batch_size
        order, outputs = by_length(windows), []
        for start in range(0, len(order), batch_size):
            before_batch()
            batch = [windows[index] for index in order[start : start + batch_size]]
            with input_errors("model: expected one that reads these texts"):  # all tokens have an embedding
                outputs.append(self.forward(batch))
            after_batch(sum(len(window["input_ids"]) for window in batch))
        in_order = np.concatenate(outputs)[np.argsort(order)]
        check_finite(in_order)
        return Group(self.combine(in_order, texts), np.array([text.lost for text in texts]))

    @functools.cached_property
    def _reads_padding(self) -> bool:
        return reads_padding(self.model, self.tokenizer, self.forward, prompt=self.prompt)


def reads_padding(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    forward: Callable[[Sequence[Window]], np.ndarray],
    *,
    prompt: str = "",
) -> bool:
    """Whether a short text has other outputs beside a longer one, where it is padded, than alone.

    `forward` runs the model on one batch of tokenised texts, and returns `[texts, …]`.
    """
    encoder = Encoder(tokenizer, input_length(model, tokenizer, None))
    short, long = (text.windows[0] for text in encoder([(prompt + text, None) for text in (_SHORT, _LONG)]))
    with input_errors("model: expected one that reads texts"):
        alone, padded = forward([short])[0], forward([long, short])[1]
    beyond_rounding = _BEYOND_ROUNDING[model.dtype != torch.float32]
    return float(np.abs(alone - padded).max()) > beyond_rounding * float(np.abs(alone).max())


def size(text: Text) -> int:
    """Characters of a text or pair, and one more, so that a blank text has a size too."""
    return 1 + sum(map(len, filter(None, text)))


def by_length(windows: Sequence[Window]) -> list[int]:
    """Indices of the windows in the order of batches, which are of similar lengths: the longest first."""
    return sorted(range(len(windows)), key=lambda index: -len(windows[index]["input_ids"]))


def check_finite(outputs: np.ndarray) -> None:
    """Reject NaN and infinite outputs of a model, which no result can be computed from."""
    if not np.isfinite(outputs).all():
        raise InputError("model: expected finite outputs, got NaN or infinite ones")
