"""Forward passes on tokenised texts: batches in which no output depends on the other texts, and errors of a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.errors import InputError, error_text

# Differences beyond rounding, as a share of the largest output, by whether weights have half precision.
_BEYOND_ROUNDING = {False: 1e-3, True: 5e-2}
_WORD, _WORDS = "a", 20


def batches(windows: Sequence[Window], batch_size: int, *, equal_lengths: bool) -> Iterator[list[int]]:
    """Indices of the windows of each batch: of similar lengths, the longest first, or of equal ones."""

    def length(index: int) -> int:
        return len(windows[index]["input_ids"])

    order = sorted(range(len(windows)), key=lambda index: -length(index))
    groups = [list(group) for _, group in itertools.groupby(order, key=length)] if equal_lengths else [order]
    for group in groups:
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def reads_padding(run: Callable[[Sequence[Window]], np.ndarray], encoder: Encoder, *, half: bool) -> bool:
    """Whether a short text has other outputs beside a longer one, where it is padded, than alone.

    So it is in models that mix neighbouring tokens, padding included, such as ConvBERT and FNet, and in decoders that
    count positions from the padding.

    Args:
        run: The model: outputs, `[windows, outputs]`, of one batch.
        encoder: Tokenises texts for the model.
        half: Whether the model's weights have half precision.
    """
    short, long = (text.windows[0] for text in encoder([(_WORD, None), (" ".join([_WORD] * _WORDS), None)]))
    alone, padded = run([short])[0], run([long, short])[1]
    return float(np.abs(alone - padded).max()) > _BEYOND_ROUNDING[half] * float(np.abs(alone).max())


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


def check_finite(outputs: np.ndarray, what: str) -> None:
    """Reject NaN and infinite outputs of a model, which no result can be computed from."""
    if not np.isfinite(outputs).all():
        raise InputError(f"model: expected finite {what}, got NaN or infinite ones")
