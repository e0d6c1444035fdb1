"""Report of pretraining: losses and the curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from linformer_kit.report.base import code, table, write_report
from linformer_kit.report.figures import draw_curves

_HIGHEST_DRAWN = 100.0  # nats; larger losses (diverged models) are drawn here
_LABELS = {"linformer": "Linformer", "full": "Transformer (full attention)"}


def write_pretrain_report(results: dict[str, Any], folder: Path) -> None:
    """Write the losses, the curve and the guesses of pretraining into a folder."""
    _draw_perplexity(results, folder / "perplexity.png")
    corpus, unigram = results["corpus"], results["unigram_entropy"]
    rows = [["unigram (token frequencies alone)", "", "", f"{unigram:.3f}", _perplexity(unigram), ""]]
    for name, model in results["models"].items():
        loss, speed = model["validation_loss"], model["tokens_per_second"]
        size = [_LABELS[name], f"{model['parameters']:,}", f"{model['updates']:,}"]
        rows.append([*size, f"{loss:.3f}", _perplexity(loss), f"{speed:,.0f}" if speed else ""])
    header = ["model", "parameters", "updates", "validation loss (nats)", "perplexity", "training tokens/s"]
    lines = [
        "# Pretraining",
        "",
        f"Corpus: {corpus['description']}. Vocabulary {corpus['vocab_size']:,}; "
        f"sequences of {corpus['seq_len']} tokens, {corpus['train_sequences']:,} to train and "
        f"{corpus['validation_sequences']:,} to validate.",
        "",
        *table(header, rows),
        "",
        "Loss and perplexity are over the masked tokens of the validation text; the unigram row is the entropy of that "
        "text's own token frequencies.",
    ]
    for model in results["models"].values():
        rows = [[code(guess["text"]), code(guess["word"].strip()), _candidates(guess)] for guess in model["guesses"]]
        if rows:
            lines += ["", "Guesses for one masked word in each of some validation texts:", ""]
            lines += table(["text", "masked word", "guesses"], rows)
    write_report(results, folder, lines)


def _candidates(guess: dict[str, Any]) -> str:
    """The likeliest tokens with their probabilities."""
    pairs = zip(guess["tokens"], guess["probabilities"], strict=True)
    return ", ".join(f"{code(token.strip() or repr(token))} {probability:.0%}" for token, probability in pairs)


def _draw_perplexity(results: dict[str, Any], path: Path) -> None:
    """Plot validation perplexity against updates, with the unigram perplexity as a horizontal line."""
    curves = {
        _LABELS[name]: [(update, math.exp(min(loss, _HIGHEST_DRAWN))) for update, loss in model["curve"]]
        for name, model in results["models"].items()
    }
    unigram = math.exp(results["unigram_entropy"])
    updates = sorted(update for points in curves.values() for update, _ in points)
    level = {f"unigram ({unigram:,.0f})": [(updates[0], unigram), (updates[-1], unigram)]}
    panels = {"validation perplexity (masked tokens)": curves | level}
    draw_curves(panels, path, logarithmic=True)


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 700)):,.1f}"
