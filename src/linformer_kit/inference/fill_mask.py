"""Fill the masks of a text with a masked language model."""

from __future__ import annotations

import json

import numpy as np
from transformers import AutoModelForMaskedLM, pipeline

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import FillMaskSettings
from linformer_kit.inference.batches import check_finite
from linformer_kit.interop.loading import load_model
from linformer_kit.models.base import longest_input
from linformer_kit.report.environment import WEIGHT_DTYPES, device_of


def main(settings: FillMaskSettings) -> None:
    """Print the likeliest tokens for each mask of the text, with probabilities, the likeliest first.

    Raises:
        InputError: for an incomplete model folder, a text that is too long or has no mask, or too large a top_k.
    """
    device = device_of(settings.device)
    model, tokenizer, *_ = load_model(settings.model, AutoModelForMaskedLM, "a masked language model")
    model.to(WEIGHT_DTYPES[settings.dtype])
    text, top_k, mask = settings.text, settings.top_k, tokenizer.mask_token
    if mask is None or mask not in text:
        raise InputError(f"text: expected one or more {mask}, got {text!r}")
    if top_k > model.config.vocab_size:
        raise InputError(f"top_k: expected at most {model.config.vocab_size:,} (the vocabulary), got {top_k:,}")
    with input_errors("text: expected one that the tokenizer reads"):
        length = len(tokenizer(text)["input_ids"])
    limit = longest_input(model)
    if limit is not None and length > limit:
        raise InputError(f"text: expected at most {limit} tokens, got {length}")
    with input_errors(f"text: expected what {model.config.model_type} reads"):
        answers = pipeline("fill-mask", model=model, tokenizer=tokenizer, device=device)(text, top_k=top_k)
    by_mask = [answers] if isinstance(answers[0], dict) else answers
    check_finite(np.array([answer["score"] for candidates in by_mask for answer in candidates]))
    for number, candidates in enumerate(by_mask, start=1):
        if len(by_mask) > 1:
            print(f"mask {number}")
        for candidate in candidates:
            token = json.dumps(candidate["token_str"], ensure_ascii=False)  # quoted: white space is part of a token
            print(f"{candidate['score']:7.2%}  {token}")
