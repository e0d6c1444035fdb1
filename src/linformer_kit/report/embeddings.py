"""Tables of sentence embedders compared with the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, number_format, table, write_report
from linformer_kit.report.numbers import mebibytes, milliseconds


def write_embeddings_report(results: dict[str, Any], folder: Path) -> str:
    """Write `embeddings.json` and `embeddings.md`.

    Args:
        results: Results of `quality.embeddings.measure_embeddings` so far.
        folder: Output folder.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "embeddings", embeddings_markdown)


def embeddings_markdown(results: dict[str, Any]) -> str:
    """Cosine, accuracy, time and memory, each relative to the first model."""
    settings, first = results["settings"], next(iter(results["models"]))
    measured = {name: found for name, found in results["models"].items() if found}
    lines = ["# Sentence embedders", "", environment_line(results["environment"]), "", number_format(settings), ""]
    if any(found["cosine"] for found in measured.values()):
        lines += [
            f"Cosine to the embeddings of {first}, mean (lowest) of {settings['samples']} texts, by truncated length:",
            "",
            *table(
                ["model", *(f"{length:,} tokens" for length in settings["cosine_lengths"])],
                [[name, *map(_cosine, found["cosine"].values())] for name, found in measured.items()],
            ),
            "",
        ]
    if settings["tasks"]:
        lines += [
            f"Accuracy of a logistic regression on the embeddings, in brackets relative to that of {first}; up to "
            f"{settings['max_train_samples']:,} training texts and {settings['max_eval_samples']:,} validation texts:",
            "",
            *table(
                ["model", *settings["tasks"]],
                [
                    [name, *(_accuracy(found, measured[first], task) for task in settings["tasks"])]
                    for name, found in measured.items()
                ],
            ),
            "",
        ]
    if any("cost" in found for found in measured.values()):
        lines += [
            f"Time of a forward pass over {settings['tokens']:,} tokens, median of interleaved runs, with the speed "
            f"relative to {first}, and memory in addition to the model's own:",
            "",
            *table(
                ["model", *(f"n {length:,}" for length in settings["lengths"])],
                [
                    [name, *(_cost(found, measured[first], str(length)) for length in settings["lengths"])]
                    for name, found in measured.items()
                ],
            ),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _cosine(found: dict[str, float]) -> str:
    return f"{found['mean']:.4f} ({found['least']:.4f})"


def _accuracy(found: dict[str, Any], first: dict[str, Any], task: str) -> str:
    accuracy = found["accuracy"][task]
    return f"{accuracy:.4f} ({accuracy / first['accuracy'][task]:.1%})"


def _cost(found: dict[str, Any], first: dict[str, Any], length: str) -> str:
    cost, other = (each.get("cost", {}).get(length) for each in (found, first))
    if cost is None or other is None:
        return ""
    peak = "" if cost["peak_bytes"] is None else f", {mebibytes(cost['peak_bytes'])} MiB"
    return f"{milliseconds(cost['median_s'])} ms ({other['median_s'] / cost['median_s']:.2f}×){peak}"
