"""Forward passes on tokenised texts, in batches in which no output depends on the other texts."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, input_errors
from linformer_kit.data.read import Text, text_groups
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import device_of
from linformer_kit.interop.loading import input_length

# Texts are read, sorted by length and recorded as done up to this number of texts or characters at a time.
_GROUP_TEXTS = 1024
_GROUP_CHARACTERS = 1 << 22
# Differences beyond rounding, as a share of the largest output, by whether weights have half precision.
_BEYOND_ROUNDING = {False: 1e-3, True: 5e-2}
_SHORT, _LONG = "a", "a " * 20


class TextModel(ABC):
    """A model that computes an array for each text, in batches of similar length.

    A model whose outputs for a text depend on the padding beside it, as ConvBERT's do, gets one text at a time.

    Args:
        model: The model; it is moved to the device.
        tokenizer: Its tokenizer, which pads.
        max_length: Tokens at which texts are truncated; None: the longest input of model and tokenizer.
        batch_size: Texts per forward pass.
        autocast: Data type of mixed precision; float32: none.
        device: The device; None: the accelerator if there is one.

    Attributes:
        prompt: What precedes each text.
        limit: Tokens at which texts are truncated.
        truncated: Number of texts that were truncated so far.
    """

    prompt: str = ""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None,
        batch_size: int,
        autocast: torch.dtype,
        device: str | torch.device | None = None,
    ) -> None:
        self.device = device_of(device)
        self.model, self.tokenizer, self._batch_size = model.to(self.device), tokenizer, batch_size
        self._half, self._autocast = model.dtype != torch.float32, autocast
        self.truncate(max_length)
        self.truncated = 0
        self._done: Sequence[np.ndarray] = ()
        self._after_batch: Callable[[list[np.ndarray], int], None] = lambda rows, windows: None

    @abstractmethod
    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        """Outputs `[windows, …]` of one batch of tokenised texts."""

    def truncate(self, max_length: int | None) -> None:
        """Set the number of tokens at which texts are truncated."""
        self.limit = input_length(self.model, self.tokenizer, max_length)

    def __call__(self, texts: Sequence[Text]) -> tuple[Float[np.ndarray, "texts width"], Int[np.ndarray, " texts"]]:
        """The output for each text, of which all or none are pairs, and its number of truncated tokens."""
        encoded = list(Encoder(self.tokenizer, self.limit)([(self.prompt + text, pair) for text, pair in texts]))
        self.truncated += sum(text.lost > 0 for text in encoded)
        return self.outputs([text.window for text in encoded]), np.array([text.lost for text in encoded])

    def groups(
        self,
        texts: Iterable[Text],
        total: int,
        done: int = 0,
        rows: Sequence[np.ndarray] = (),
        save: Callable[[list[np.ndarray], int], None] = lambda rows, done: None,
    ) -> Iterator[list[Text]]:
        """Groups of consecutive texts, as `in_groups`; a progress bar counts texts after each batch of a group.

        Args:
            texts: The texts that are left.
            total: Number of all texts.
            done: Number of texts before them.
            rows: What `save` got last for the first group, in an interrupted run; these windows are not run again.
            save: Called after each batch, with the rows of all windows of this group that are done, and the number of
                texts that are done.
        """
        with tqdm(total=total, initial=done, unit=" texts", dynamic_ncols=True, delay=2) as bar:

            def after_batch(rows: list[np.ndarray], windows: int) -> None:
                finished = done + len(group) * len(rows) // windows
                bar.update(finished - bar.n)
                save(rows, finished)

            for group in in_groups(texts):
                self._done, self._after_batch = rows, after_batch
                yield group
                done, rows = done + len(group), ()
                bar.update(done - bar.n)

    def pad(self, windows: Sequence[Window]) -> BatchEncoding:
        """Inputs of the model for one batch."""
        return self.tokenizer.pad(list(windows), return_tensors="pt").to(self.device)

    @torch.inference_mode()
    def outputs(
        self, windows: Sequence[Window], run: Callable[[list[int]], Iterable[np.ndarray]] | None = None
    ) -> Float[np.ndarray, "rows width"]:
        """The outputs for tokenised texts, one or more, in their order.

        Args:
            windows: Tokenised texts.
            run: From the numbers of some windows to one or more rows for each; None: `forward` of these windows.
        """
        run = run or (lambda batch: self.forward([windows[index] for index in batch]))
        size = 1 if len(windows) > 1 and self._reads_padding else self._batch_size
        order, rows = by_length(windows), list(self._done)
        for start in range(len(rows), len(windows), size):
            mixed = torch.autocast(self.device.type, self._autocast, enabled=self._autocast != torch.float32)
            with mixed, input_errors("model: expected one that reads these texts"):  # all tokens have an embedding
                rows += map(np.atleast_2d, run(order[start : start + size]))
            self._after_batch(rows, len(windows))
        outputs = np.concatenate([rows[place] for place in np.argsort(order)])
        check_finite(outputs)
        return outputs

    @functools.cached_property
    def _reads_padding(self) -> bool:
        """Whether a short text has other outputs beside a longer one, where it is padded, than alone."""
        encoder = Encoder(self.tokenizer, input_length(self.model, self.tokenizer, None))
        short, long = (text.window for text in encoder([(self.prompt + text, None) for text in (_SHORT, _LONG)]))
        with input_errors("model: expected one that reads texts"):
            alone, padded = self.forward([short])[0], self.forward([long, short])[1]
        return float(np.abs(alone - padded).max()) > _BEYOND_ROUNDING[self._half] * float(np.abs(alone).max())


def by_length(windows: Sequence[Window]) -> list[int]:
    """Indices of the windows in the order of batches, which are of similar lengths: the longest first."""
    return sorted(range(len(windows)), key=lambda index: -len(windows[index]["input_ids"]))


def in_groups(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Groups of consecutive texts; each is sorted by length, and recorded as done, as a whole."""
    return text_groups(texts, count=_GROUP_TEXTS, characters=_GROUP_CHARACTERS)


def check_finite(outputs: np.ndarray) -> None:
    """Reject NaN and infinite outputs of a model, which no result can be computed from."""
    if not np.isfinite(outputs).all():
        raise InputError("model: expected finite outputs, got NaN or infinite ones")
