"""Fill the masks of a text with a masked language model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from transformers import AutoModelForMaskedLM, pipeline

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import FillMaskSettings
from linformer_kit.inference.batches import check_finite
from linformer_kit.interop.loading import load_model
from linformer_kit.models.base import longest_input


def main(settings: FillMaskSettings) -> None:
    """Print the likeliest tokens for each mask of the text, with probabilities."""
    guesses = fill_mask(settings.model, settings.text, top_k=settings.top_k)
    for number, candidates in enumerate(guesses, start=1):
        if len(guesses) > 1:
            print(f"mask {number}")
        for candidate in candidates:
            token = json.dumps(candidate["token"], ensure_ascii=False)  # quoted: white space is part of a token
            print(f"{candidate['probability']:7.2%}  {token}")


def fill_mask(model: str, text: str, *, top_k: int = 5) -> list[list[dict[str, Any]]]:
    """The likeliest tokens for each mask of a text, by the masked language model of a folder or hub id.

    Returns:
        For each mask, in order, `top_k` dicts of `token` (its text, white space included) and `probability`, the
        likeliest first.

    Raises:
        InputError: for an incomplete model folder, a text that is too long or has no mask, or too large a top_k.
    """
    network, tokenizer = load_model(model, AutoModelForMaskedLM, "a masked language model")
    mask = tokenizer.mask_token
    if mask is None or mask not in text:
        raise InputError(f"text: expected one or more {mask}, got {text!r}")
    if top_k > network.config.vocab_size:
        raise InputError(f"top_k: expected at most {network.config.vocab_size:,} (the vocabulary), got {top_k:,}")
    with input_errors("text: expected one that the tokenizer reads"):
        length = len(tokenizer(text)["input_ids"])
    limit = longest_input(network)
    if limit is not None and length > limit:
        raise InputError(f"text: expected at most {limit} tokens, got {length}")
    with input_errors(f"text: expected what {network.config.model_type} reads"):
        answers = pipeline("fill-mask", model=network, tokenizer=tokenizer)(text, top_k=top_k)
    by_mask = [answers] if isinstance(answers[0], dict) else answers
    check_finite(np.array([answer["score"] for candidates in by_mask for answer in candidates]))
    return [
        [{"token": answer["token_str"], "probability": answer["score"]} for answer in candidates]
        for candidates in by_mask
    ]
