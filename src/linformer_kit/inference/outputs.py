"""Errors of a model's forward pass on texts, and outputs that are no result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from linformer_kit.errors import InputError, error_text


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
