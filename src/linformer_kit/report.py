"""Results as a person reads them: JSON to Markdown tables and figures. Everything here is made from the JSON alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from linformer_kit.training.checkpoint import write_whole

_LABELLED_TOKENS = 32  # more than these have no room on an axis
_LONGEST_LABEL = 16  # characters; whole sentences can be a token
_PIXELS = 300  # along the shorter side of a panel
_HIGHEST_DRAWN = 100.0  # nats; a model that has diverged stays on the page

LABELS = {"linformer": "Linformer", "full": "Transformer (full attention)"}


def write_pretrain_report(results: dict[str, Any], folder: Path) -> str:
    """Write `metrics.json`, `metrics.md` and `perplexity.png`.

    Args:
        results: What `pretrain.pretrain` measured.
        folder: Where to write.

    Returns:
        The Markdown text.
    """
    _write_json(results, folder / "metrics.json")
    text = pretrain_markdown(results)
    write_whole(folder / "metrics.md", text)
    draw_perplexity(results, folder / "perplexity.png")
    return text


def pretrain_markdown(results: dict[str, Any]) -> str:
    """The results of pretraining as Markdown: losses, then the guesses."""
    corpus, models = results["corpus"], results["models"]
    rows = [
        [
            "unigram (token frequencies alone)",
            "",
            "",
            f"{results['unigram_entropy']:.3f}",
            _perplexity(results["unigram_entropy"]),
            "",
        ]
    ]
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
        *_table(header, rows),
        "",
        "Loss and perplexity are over the masked tokens of the validation text; the unigram row is the entropy of that "
        "text's own token frequencies.",
    ]
    for name, model in models.items():
        lines += ["", f"## What {LABELS[name]} guesses in held-out text", ""]
        lines += _table(
            ["text", "right", "guesses"],
            [
                [
                    _code(guess["text"]),
                    _token(guess["answer"]),
                    ", ".join(f"{_token(token)} {probability:.0%}" for token, probability in guess["guesses"]),
                ]
                for guess in model["guesses"]
            ],
        )
    return "\n".join(lines) + "\n"


def draw_perplexity(results: dict[str, Any], path: Path) -> None:
    """Validation perplexity against updates, with the unigram's as a line."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
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
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("updates")
    axes.set_ylabel("validation perplexity (masked tokens)")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def write_inspection_report(results: dict[str, Any], folder: Path) -> str:
    """Write `inspection.json` and `inspection.md`.

    Args:
        results: What `analysis.inspection.inspect` found.
        folder: Where to write.

    Returns:
        The Markdown text.
    """
    _write_json(results, folder / "inspection.json")
    text = inspection_markdown(results)
    write_whole(folder / "inspection.md", text)
    return text


def inspection_markdown(results: dict[str, Any]) -> str:
    """How many slots each head of each layer spreads its attention over."""
    rows = [
        [f"layer {layer}", *(f"{slots:,.1f}" for slots in heads)]
        for layer, heads in enumerate(results["effective_slots"])
    ]
    header = ["", *(f"head {head}" for head in range(len(results["effective_slots"][0])))]
    kind = f"{results['projection']}, sharing {results['sharing']}, k {results['projected_dim']}"
    lines = [
        "# Inspection",
        "",
        f"Model: {_code(results['model'])} ({kind if results['attention'] == 'linformer' else 'full attention'}). "
        f"Text: {results['text']}, {len(results['tokens']):,} tokens.",
        "",
        "Effective slots: e to the entropy of the rows of the context mapping, averaged over the tokens. 1: each token "
        "attends to a single slot; all of them: to all alike.",
        "",
        *_table(header, rows),
        "",
        f"`inspection.npz` holds the context mappings of layers {_listed(results['layers'])} and heads "
        f"{_listed(results['heads'])} as `context_mappings[layer, head, token, slot]`, NaN where a head has no such "
        "slot, and the matrices in `projections.png`, all with slots in the model's own order.",
    ]
    return "\n".join(lines) + "\n"


def draw_context_mappings(results: dict[str, Any], mappings: np.ndarray, path: Path) -> None:
    """Context mappings as images, a row for each layer and a column for each head.

    Args:
        results: What `write_inspection_report` takes: layers, heads and tokens.
        mappings: `[layers, heads, tokens, slots]`, those that are drawn; NaN, drawn grey, for slots that a head lacks.
        path: Where to write.
    """
    layers, heads, tokens, _ = mappings.shape
    figure, axes = plt.subplots(
        layers, heads, figsize=(1.2 + 3 * heads, 0.8 + 3 * layers), squeeze=False, sharey=True, layout="constrained"
    )
    highest = float(np.nanquantile(mappings, 0.998)) or 1.0  # 0: each token attends to one of very many
    for row, layer in enumerate(results["layers"]):
        for column, head in enumerate(results["heads"]):
            axis = axes[row, column]
            image = _draw_matrix(axis, mappings[row, column], f"layer {layer}, head {head}", "viridis", 0, highest)
    for axis in axes[:, 0]:
        if tokens <= _LABELLED_TOKENS:
            axis.set_yticks(range(tokens), [_label(token) for token in results["tokens"]], fontsize=6)
        axis.set_ylabel("token")
    full, placed = results["attention"] == "full", results["projection"] != "random"
    for axis in axes[-1]:
        axis.set_xlabel("token" if full else "slot, by its place in the text" if placed else "slot")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2 / layers), extend="max")
    bar.set_label("attention weight, P" if full else "attention weight, P̄")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_projections(images: Sequence[Any], path: Path) -> None:
    """Matrices of projections as images, E and F side by side, one colour scale for each.

    Args:
        images: `analysis.inspection.Image`s.
        path: Where to write.
    """
    columns = 2 if any(" F" in image.name for image in images) else 1
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.5 * columns, 2.9 * rows), squeeze=False, layout="constrained")
    for axis, image in zip(axes.flat, images, strict=True):
        highest = float(np.abs(image.matrix).max()) or 1.0
        drawn = _draw_matrix(axis, image.matrix[image.order], image.name, "RdBu", -highest, highest)
        axis.set_xlabel(image.columns)
        axis.set_ylabel(image.rows)
        figure.colorbar(drawn, ax=axis, label="weight")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_matrix(axis: Axes, matrix: np.ndarray, title: str, colours: str, lowest: float, highest: float) -> Any:
    """Crisp where there is room, averaged where there are more numbers than pixels; NaN is grey."""
    cmap = plt.get_cmap(colours).with_extremes(bad="lightgrey")
    interpolation = "antialiased" if max(matrix.shape) > _PIXELS else "nearest"
    drawn = axis.imshow(matrix, aspect="auto", cmap=cmap, vmin=lowest, vmax=highest, interpolation=interpolation)
    axis.set_title(title, fontsize=10)
    for numbered in (axis.xaxis, axis.yaxis):
        numbered.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    return drawn


def _label(token: str) -> str:
    """A token on an axis: cut, and with escapes for what cannot be seen or is not in the font."""
    font = get_font(findfont(FontProperties()))
    label = ""
    for character in token:
        seen = character.isprintable() and font.get_char_index(ord(character)) and character != "\\"
        shown = character if seen else character.encode("unicode_escape").decode()
        if len(label) + len(shown) > _LONGEST_LABEL:
            label += "…"
            break
        label += shown
    return label.replace("$", r"\$")  # no formula


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _write_json(results: dict[str, Any], path: Path) -> None:
    numbers = json.dumps(_finite(results), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, numbers + "\n")


def _finite(value: Any) -> Any:
    """JSON knows no NaN: null stands for it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 700)):,.1f}"


def _count(number: int | None) -> str:
    return "a stream" if number is None else f"{number:,}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _token(token: str) -> str:
    """A token in quotes, so that one sees a space at its start and a token of nothing but line breaks."""
    return _code(json.dumps(token, ensure_ascii=False))


def _code(text: str) -> str:
    """Text as code that survives in a table cell, whatever it holds."""
    text = text.replace("\n", "⏎").replace("|", "¦")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
