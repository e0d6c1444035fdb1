"""Forward passes on tokenised texts: batches in which no output depends on the other texts, and errors of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
import torch
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, error_text
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import best_device, use_bf16
from linformer_kit.interop.loading import input_length

Text = tuple[str, str | None]
Run = Callable[[list[int]], Iterable[np.ndarray]]  # a forward pass: numbers of windows -> the outputs of each

# Texts are read, sorted by length and recorded as done up to this number of texts or characters at a time.
_TEXTS_TOGETHER = 1024
_CHARACTERS_TOGETHER = 1 << 22
# Differences beyond rounding, as a share of the largest output, by whether weights have half precision.
_BEYOND_ROUNDING = {False: 1e-3, True: 5e-2}
_WORD, _WORDS = "a", 20


class BatchSettings(Protocol):
    """The settings of forward passes."""

    batch_size: int
    bf16: Literal["auto", "true", "false"]


class Batches:
    """Runs a model on tokenised texts, in batches of similar length.

    A model whose outputs for a text depend on the padding beside it gets one text at a time. Such are models that mix
    neighbouring tokens, as ConvBERT and FNet do, and decoders that count positions from the padding.

    Args:
        model: The model, on its device.
        tokenizer: Its tokenizer, which pads.
        settings: Texts per forward pass, and mixed precision.
        outputs: The model: outputs of each of some windows, to find out whether it reads padding.

    Attributes:
        device: Device of the model.
        bf16: Whether it runs in bfloat16 mixed precision; not with half-precision weights.

    Raises:
        InputError: for bf16 mixed precision with weights in float16.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: BatchSettings,
        outputs: Callable[[list[Window]], np.ndarray],
    ) -> None:
        self.device, self._tokenizer, self._settings, self._outputs = best_device(), tokenizer, settings, outputs
        self._limit = input_length(model, tokenizer, None)
        self._half = model.dtype != torch.float32
        on_cpu, fp16 = self.device.type == "cpu", model.dtype == torch.float16
        self.bf16 = use_bf16(settings.bf16, on_cpu=on_cpu, fp16=fp16) and not self._half

    def pad(self, windows: Sequence[Window]) -> BatchEncoding:
        """Inputs of the model for one batch."""
        return self._tokenizer.pad(list(windows), return_tensors="pt").to(self.device)

    @torch.inference_mode()
    def __call__(self, windows: Sequence[Window], run: Run, what: str | None = None) -> list[np.ndarray]:
        """Outputs of `run` for each window, in order; `what` describes them in a progress bar.

        Raises:
            InputError: for windows that the model cannot read, and outputs that are NaN or infinite.
        """
        outputs: dict[int, np.ndarray] = {}
        batches = by_length(windows, 1 if len(windows) > 1 and self._reads_padding else self._settings.batch_size)
        for batch in tqdm(batches, desc=what, unit="batch", dynamic_ncols=True, delay=2, disable=what is None):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16), text_errors():
                outputs |= zip(batch, run(batch), strict=True)
            for index in batch:
                check_finite(outputs[index])
        return [outputs[index] for index in range(len(windows))]

    @functools.cached_property
    def _reads_padding(self) -> bool:
        """Whether a short text has other outputs beside a longer one, where it is padded, than alone."""
        encoder = Encoder(self._tokenizer, self._limit)
        short, long = (text.window for text in encoder([(_WORD, None), (" ".join([_WORD] * _WORDS), None)]))
        with text_errors():
            alone, padded = self._outputs([short])[0], self._outputs([long, short])[1]
        return float(np.abs(alone - padded).max()) > _BEYOND_ROUNDING[self._half] * float(np.abs(alone).max())


def by_length(windows: Sequence[Window], size: int) -> list[list[int]]:
    """Indices of the windows of each batch of `size`: of similar lengths, the longest first."""
    order = sorted(range(len(windows)), key=lambda index: -len(windows[index]["input_ids"]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def together(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Groups of consecutive texts to process together."""
    group: list[Text] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text[0]) + len(text[1] or "")
        if len(group) == _TEXTS_TOGETHER or characters >= _CHARACTERS_TOGETHER:
            yield group
            group, characters = [], 0
    if group:
        yield group


@contextmanager
def text_errors() -> Iterator[None]:
    """Turn errors of a model's forward pass on texts that it cannot read into `InputError`.

    Such as the index of an added token that has no embedding (on CPUs), or a second end token where a decoder expects
    one.
    """
    try:
        yield
    except InputError:
        raise
    except (IndexError, ValueError) as error:
        raise InputError(f"model: expected one that reads these texts, got {error_text(error)}") from error


def check_finite(outputs: np.ndarray) -> None:
    """Reject NaN and infinite outputs of a model, which no result can be computed from."""
    if not np.isfinite(outputs).all():
        raise InputError("model: expected finite outputs, got NaN or infinite ones")
