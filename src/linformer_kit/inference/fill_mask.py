"""Fill masks with a masked language model: those in a given text, and sampled words of held-out text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase, pipeline

from linformer_kit.errors import InputError
from linformer_kit.inference.batches import check_finite, text_errors
from linformer_kit.interop.loading import load_model
from linformer_kit.models.positions import longest_input

_BEFORE, _AFTER = 20, 10  # tokens that are shown around a mask of held-out text


def fill_mask(model: str, text: str, *, top_k: int = 5) -> list[list[dict[str, Any]]]:
    """The likeliest tokens for each mask of a text.

    Args:
        model: Folder or hub id of a masked language model.
        text: Text with one or more of the tokenizer's mask tokens.
        top_k: Number of tokens for each mask.

    Returns:
        For each mask, in order, `top_k` dicts of `token` (its text, white space included) and `probability`, the
        likeliest first.

    Raises:
        InputError: for an incomplete model folder, a text that is too long or has no mask, or a top_k out of range.
    """
    network, tokenizer = load_masked_language_model(model)
    mask = tokenizer.mask_token
    if mask is None or mask not in text:
        raise InputError(f"text: expected one or more {mask}, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"text: expected UTF-8, got {text[error.start]!r} at character {error.start}") from None
    if not 1 <= top_k <= network.config.vocab_size:
        raise InputError(f"top_k: expected 1 to {network.config.vocab_size} (the vocabulary), got {top_k}")
    length = len(tokenizer(text)["input_ids"])
    limit = longest_input(network)
    if limit is not None and length > limit:
        raise InputError(f"text: expected at most {limit} tokens, got {length}")
    with text_errors():
        answers = pipeline("fill-mask", model=network, tokenizer=tokenizer)(text, top_k=top_k)
    if isinstance(answers[0], dict):
        answers = [answers]
    check_finite(np.array([answer["score"] for candidates in answers for answer in candidates]), "logits")
    return [
        [{"token": answer["token_str"], "probability": answer["score"]} for answer in candidates]
        for candidates in answers
    ]


def load_masked_language_model(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a masked language model, in evaluation mode, and its tokenizer, from a folder or the hub.

    Raises:
        InputError: if the folder does not exist or is incomplete, or the model is not a masked language model.
    """
    return load_model(name, AutoModelForMaskedLM, "a masked language model")


@torch.no_grad()
def guess_held_out(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    blocks: Any,
    *,
    seed: int,
    count: int = 5,
    top_k: int = 3,
) -> list[dict[str, Any]]:
    """Mask one word in each of a few held-out blocks and predict it; a seed masks the same words for every model.

    The model sees the whole block, as in training; the text returned is what stands around the mask.

    Args:
        model: A masked language model.
        tokenizer: Its tokenizer.
        blocks: Packed sequences, rows with `input_ids`.
        seed: Seed of the choice of blocks and words.
        count: Number of blocks.
        top_k: Number of predictions for each.

    Returns:
        Dicts of `text`, `answer` and `guesses`: pairs of token and probability; tokens keep their white space.
    """
    model.eval()
    generator = np.random.default_rng(seed)
    guesses: list[dict[str, Any]] = []
    for index in generator.permutation(len(blocks)).tolist():
        ids = np.array(blocks[index]["input_ids"], dtype=np.int64)
        words = [position for position in range(1, len(ids) - 1) if _is_word(tokenizer, ids, position)]
        if not words:
            continue
        position = int(generator.choice(words))
        masked = torch.from_numpy(ids.copy()).to(model.device)[None]
        masked[0, position] = tokenizer.mask_token_id
        likeliest = model(masked).logits[0, position].float().softmax(dim=-1).topk(top_k)
        tokens = [tokenizer.decode([token]) for token in likeliest.indices.tolist()]
        guesses.append(
            {
                "text": tokenizer.decode(masked[0, max(1, position - _BEFORE) : position + _AFTER].tolist()).strip(),
                "answer": tokenizer.decode([ids[position]]),
                "guesses": list(zip(tokens, likeliest.values.tolist(), strict=True)),
            }
        )
        if len(guesses) == count:
            break
    return guesses


def _is_word(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray, position: int) -> bool:
    """Whether a token is a whole word; tokens are decoded with their neighbours, since some tokenizers add spaces."""
    word = tokenizer.decode([ids[position]]).strip()
    if len(word) <= 2 or not word.isalpha():
        return False
    before = tokenizer.decode(ids[position - 1 : position + 1]).removesuffix(word)
    after = tokenizer.decode(ids[position : position + 2]).strip().removeprefix(word)
    return not before[-1:].isalnum() and not after[:1].isalnum()
