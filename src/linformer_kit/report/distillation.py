"""Report of a distillation: distance from student to teacher, before and after, and the curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import table, write_report
from linformer_kit.report.figures import new_figure, number_ticks, save_figure, show_grid

_MEASURES = {
    "cosine": "cosine of mean embeddings",
    "error": "error of the last hidden states",
    "agreement": "predictions equal to the teacher's",
    "loss": "loss",
}


def write_distill_report(results: dict[str, Any], folder: Path) -> str:
    """Write `metrics.json`, `metrics.md` and `curve.png`; return the Markdown."""
    return write_report(results, folder, "metrics", distill_markdown, draw_curve)


def distill_markdown(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    teacher, student, curve = results["teacher"], results["student"], results["curve"]
    rows = [
        [words, *(_shown(name, values[place][1]) for place in (0, -1))]
        for name, words in _MEASURES.items()
        if (values := curve.get(name))
    ]
    exact = "".join(f"{name} {count}, " for name, count in student.get("exact", {}).items() if count)
    piece = results["text"].get("piece_length")
    long = f" The teacher reads texts of more than {piece:,} tokens in pieces." if piece else ""
    lines = [
        "# Distillation",
        "",
        f"Teacher: {teacher['name']} ({teacher['type']}), {teacher['parameters']:,} parameters, "
        f"{teacher['layers']} layers.",
        f"Student: {student['layers']} layers, n {student['seq_len']:,}, k {student['projected_dim']}, "
        f"sharing {student['sharing']}, projection {student['projection']}, {exact}"
        f"{student['parameters']:,} parameters{_adapter(student)}.",
        f"Text: {results['text']['description']}.{long}",
        "",
        *table(["on held-out text", "before", f"after {results['updates']:,} updates"], rows),
        "",
        "The error of the last hidden states is relative: 0 means equal to the teacher's, 1 no better than their mean. "
        f"Training took {results['seconds'] / 60:.1f} minutes.",
    ]
    return "\n".join(lines) + "\n"


def _adapter(student: dict[str, Any]) -> str:
    """What was trained, if that was not all parameters."""
    adapter = student.get("adapter")
    return (
        f", trained by an adapter of rank {adapter['rank']} with {adapter['parameters']:,} parameters"
        if adapter
        else ""
    )


def draw_curve(results: dict[str, Any], folder: Path) -> None:
    """Plot error and cosine on held-out text against updates, and mark the start of joint training of the layers."""
    figure, (left, right) = new_figure((10, 4), 1, 2)
    for axes, name in ((left, "error"), (right, "cosine")):
        updates, values = zip(*results["curve"][name], strict=True)
        axes.plot(updates, values, marker="o", markersize=3)
        if 0 < results["layerwise_steps"] < results["updates"]:
            axes.axvline(
                results["layerwise_steps"], color="gray", linestyle="--", label="joint training of the layers from here"
            )
            axes.legend()
        axes.set_xlabel("updates")
        axes.set_ylabel(f"{_MEASURES[name]} (held-out text)")
        show_grid(axes)
    left.set_yscale("log")
    number_ticks(left.yaxis, "g", minor=True)
    save_figure(figure, folder / "curve.png")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:.1%}" if name == "agreement" else f"{value:.4f}"
