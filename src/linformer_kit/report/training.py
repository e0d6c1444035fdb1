"""Reports of pretraining and of distillation, and the card of an adapter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from linformer_kit.report.base import code, table, write_report
from linformer_kit.report.figures import draw_curves

_HIGHEST_DRAWN = 100.0  # nats; larger losses (diverged models) are drawn here
_ATTENTION = {"linformer": "Linformer", "full": "Transformer (full attention)"}
_MEASURES = {
    "cosine": "cosine of mean embeddings",
    "error": "error of the last layer",
    "agreement": "predictions equal to the teacher's",
    "loss": "loss",
}


def write_pretrain_report(results: dict[str, Any], folder: Path) -> None:
    """Write the loss, its curve and guesses of masked words into a folder."""
    corpus, unigram, loss = results["corpus"], results["unigram_entropy"], results["validation_loss"]
    curve, training = _perplexities(results["curve"]), _perplexities(results["training_curve"])
    level = [(update, math.exp(unigram)) for update in (curve[0][0], curve[-1][0])]
    attention = results["model"]["attention"]
    by_layer = attention if isinstance(attention, list) else [attention]
    name = " and ".join(_ATTENTION[kind] for kind in dict.fromkeys(by_layer))
    tokens = "tokens" if results["model"]["causal"] else "masked tokens"
    curves = {
        f"{name}, validation ({_drawn(loss):,.1f})": curve,
        f"token frequencies alone ({level[0][1]:,.1f})": level,
        f"{name}, training batches": training,
    }
    draw_curves({f"perplexity ({tokens})": curves}, folder / "perplexity.png", logarithmic=True)
    speed = f"{results['tokens_per_second']:,.0f}" if results["tokens_per_second"] else ""
    size = [f"{results['model']['parameters']:,}", f"{results['updates']:,}"]
    rows = [
        ["unigram (token frequencies alone)", "", "", *_loss_and_perplexity(unigram), ""],
        [name, *size, *_loss_and_perplexity(loss), speed],
    ]
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
        f"Loss and perplexity are over the {tokens} of the validation text; the unigram row is the entropy of that "
        "text's own token frequencies.",
    ]
    if results["guesses"]:
        rows = [[code(guess["text"]), code(guess["word"].strip()), _likeliest(guess)] for guess in results["guesses"]]
        lines += ["", "Guesses for one masked word in each of some validation texts:", ""]
        lines += table(["text", "masked word", "guesses"], rows)
    write_report(results, folder, lines)


def _perplexities(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Pairs of update and perplexity of pairs of update and loss."""
    return [(update, _drawn(loss)) for update, loss in curve]


def _drawn(loss: float) -> float:
    """The perplexity of a loss in a picture."""
    return math.exp(min(loss, _HIGHEST_DRAWN))


def perplexity(loss: float) -> float:
    """The perplexity of a loss in nats; of losses that would overflow, the largest."""
    return math.exp(min(loss, 700))


def _loss_and_perplexity(loss: float) -> list[str]:
    return [f"{loss:.3f}", f"{perplexity(loss):,.1f}"]


def _likeliest(guess: dict[str, Any]) -> str:
    """The likeliest tokens with their probabilities."""
    pairs = zip(guess["tokens"], guess["probabilities"], strict=True)
    return ", ".join(f"{code(token.strip() or repr(token))} {probability:.0%}" for token, probability in pairs)


def write_distill_report(results: dict[str, Any], folder: Path) -> None:
    """Write the distance from student to teacher, before and after, and its curve into a folder."""
    teacher, student, curve = results["teacher"], results["student"], results["curve"]
    panels = {f"{_MEASURES[name]} (held-out text)": {name: curve[name]} for name in ("error", "cosine")}
    draw_curves(panels, folder / "curve.png", logarithmic=True)
    piece, adapter = results["text"]["piece_length"], student["adapter"]
    long = f" The teacher reads texts of more than {piece:,} tokens in pieces." if piece else ""
    trained = ""  # what was trained, if that was not all parameters
    if adapter:
        trained = f", trained by an adapter of rank {adapter['rank']} with {adapter['parameters']:,} parameters"
    lines = [
        "# Distillation",
        "",
        f"Teacher: {teacher['name']} ({teacher['type']}), {teacher['parameters']:,} parameters, "
        f"{teacher['layers']} layers.",
        f"Student: {student['layers']} layers, n {student['seq_len']:,}, {_linear(student)}, "
        f"{student['parameters']:,} parameters{trained}.",
        f"Text: {results['text']['description']}.{long}",
        "",
        *_before_and_after(curve, ["on held-out text", "before", f"after {results['updates']:,} updates"]),
        "",
        "The error of the last layer is relative: 0 means equal to the teacher's output, 1 no better than its mean "
        f"over {results['spread']}. "
        f"All layers are trained together after {results['layerwise_steps']:,} updates. "
        f"Training took {results['seconds'] / 60:.1f} minutes.",
    ]
    write_report(results, folder, lines)


def adapter_card(about: dict[str, Any]) -> str:
    """The card as Markdown, with the fields that model hubs read at its top.

    Args:
        about: Contents of the adapter's `linformer.json`.
    """
    base, made = about["base_model"], about["distillation"]
    student, settings = made["student"], made["settings"]
    fields = {"base_model": base["name"], "library_name": "peft", "license": base["license"], "tags": ["linformer"]}
    lines = [
        "---",
        yaml.safe_dump(fields, sort_keys=False).strip(),
        "---",
        "",
        f"# Linear attention for {base['name']}",
        "",
        f"With this adapter {base['name']} reads texts of up to {student['seq_len']:,} tokens, with linear attention: "
        f"{_linear(student)}.",
        "",
        "```python",
        "import linformer_kit as lk",
        "from transformers import AutoModel",
        "",
        f'model = lk.linearize(AutoModel.from_pretrained("{base["name"]}"), adapter="FOLDER")',
        "```",
        "",
        f"Trained by `linformer distill` on {made['text']['description']}. "
        f"{made['updates']:,} updates of {settings['per_device_train_batch_size']} texts, "
        f"{made['seconds'] / 3600:.1f} hours, seed {settings['seed']}; "
        f"rank {student['adapter']['rank']}, {student['adapter']['parameters']:,} parameters in bfloat16. "
        "linformer.json has all settings.",
        "",
        *_before_and_after(made["curve"], ["on held-out text, compared with the base model", "before", "after"]),
        "",
        f"Errors are relative to the spread of the base model's states, measured in {made['spread']}.",
    ]
    return "\n".join(lines) + "\n"


def _linear(student: dict[str, Any]) -> str:
    """How a student's attention is linear; of the tokens that a query attends to exactly only what there is."""
    exact = "".join(f", {name} {count}" for name, count in student["exact"].items() if count)
    return f"k {student['projected_dim']}, sharing {student['sharing']}, projection {student['projection']}{exact}"


def _before_and_after(curve: dict[str, Any], header: list[str]) -> list[str]:
    """A table of the first and the last value of each measure."""
    rows = []
    for name, words in _MEASURES.items():
        if curve.get(name):
            ends = [curve[name][place][1] for place in (0, -1)]
            rows.append([words, *(f"{value:.1%}" if name == "agreement" else f"{value:.4f}" for value in ends)])
    return table(header, rows)
