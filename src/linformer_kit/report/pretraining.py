"""Report of pretraining: losses and the curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from linformer_kit.report.base import table, write_report
from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, save_figure, show_grid

_HIGHEST_DRAWN = 100.0  # nats; larger losses (diverged models) are drawn here

LABELS = {"linformer": "Linformer", "full": "Transformer (full attention)"}


def write_pretrain_report(results: dict[str, Any], folder: Path) -> str:
    """Write `metrics.json`, `metrics.md` and `perplexity.png`; return the Markdown."""
    return write_report(results, folder, "metrics", pretrain_markdown, draw_perplexity)


def pretrain_markdown(results: dict[str, Any]) -> str:
    """The results of pretraining as Markdown: the losses."""
    corpus, models = results["corpus"], results["models"]
    unigram = results["unigram_entropy"]
    rows = [["unigram (token frequencies alone)", "", "", f"{unigram:.3f}", _perplexity(unigram), ""]]
    for name, model in models.items():
        loss = model["validation_loss"]
        rows.append(
            [
                LABELS[name],
                f"{model['parameters']:,}",
                f"{model['updates']:,}",
                f"{loss:.3f}",
                _perplexity(loss),
                f"{model['tokens_per_second']:,.0f}" if model["tokens_per_second"] else "",
            ]
        )
    header = ["model", "parameters", "updates", "validation loss (nats)", "perplexity", "training tokens/s"]
    lines = [
        "# Pretraining",
        "",
        f"Corpus: {corpus['description']}. Vocabulary {corpus['vocab_size']:,}; "
        f"sequences of {corpus['seq_len']} tokens, {_count(corpus['train_sequences'])} to train and "
        f"{_count(corpus['validation_sequences'])} to validate.",
        "",
        *table(header, rows),
        "",
        "Loss and perplexity are over the masked tokens of the validation text; the unigram row is the entropy of that "
        "text's own token frequencies.",
    ]
    return "\n".join(lines) + "\n"


def draw_perplexity(results: dict[str, Any], folder: Path) -> None:
    """Plot validation perplexity against updates, with the unigram perplexity as a horizontal line."""
    figure, axes = new_figure((7, 4.5))
    for name, model in results["models"].items():
        updates, losses = zip(*model["curve"], strict=True)
        axes.plot(
            updates,
            [math.exp(min(loss, _HIGHEST_DRAWN)) for loss in losses],
            marker="o",
            markersize=3,
            label=LABELS[name],
        )
    unigram = math.exp(results["unigram_entropy"])
    axes.axhline(unigram, color="gray", linestyle="--", linewidth=1, label=f"unigram ({unigram:,.0f})")
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    number_ticks(axes.yaxis, ",.0f")
    axes.set_xlabel("updates")
    axes.set_ylabel("validation perplexity (masked tokens)")
    show_grid(axes, "both")
    axes.legend()
    save_figure(figure, folder / "perplexity.png")


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 700)):,.1f}"


def _count(number: int | None) -> str:
    return "a stream" if number is None else f"{number:,}"
