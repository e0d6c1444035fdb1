"""The file of a tokenizer: it pads only when asked, and truncates at the longest input."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

NO_LIMIT = 1 << 31  # tokenizers without a limit have about 10^30


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer, once its padding and truncation are reset."""
    reset_padding(tokenizer)
    tokenizer.save_pretrained(folder)


def reset_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let the `tokenizers` library pad only when asked, and truncate at `model_max_length`.

    `tokenizer.json` keeps both as they were in the latest call, or in the file that the tokenizer was read from; calls
    through transformers do not depend on it.
    """
    if not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    if tokenizer.model_max_length < NO_LIMIT:
        backend.enable_truncation(tokenizer.model_max_length, direction=tokenizer.truncation_side)
