"""Report of a distillation: distance from student to teacher, before and after, and the curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import table, write_report
from linformer_kit.report.figures import draw_curves

_MEASURES = {
    "cosine": "cosine of mean embeddings",
    "error": "error of the last hidden states",
    "agreement": "predictions equal to the teacher's",
    "loss": "loss",
}


def write_distill_report(results: dict[str, Any], folder: Path) -> str:
    """Write `metrics.json`, `metrics.md`, `curve.png` and `report.html`; return the Markdown."""
    return write_report(results, folder, distill_markdown, _draw_curve)


def distill_markdown(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    teacher, student, curve = results["teacher"], results["student"], results["curve"]
    rows = [
        [words, *(_shown(name, values[place][1]) for place in (0, -1))]
        for name, words in _MEASURES.items()
        if (values := curve.get(name))
    ]
    exact = "".join(f"{name} {count}, " for name, count in student["exact"].items() if count)
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
        f"Student: {student['layers']} layers, n {student['seq_len']:,}, k {student['projected_dim']}, "
        f"sharing {student['sharing']}, projection {student['projection']}, {exact}"
        f"{student['parameters']:,} parameters{trained}.",
        f"Text: {results['text']['description']}.{long}",
        "",
        *table(["on held-out text", "before", f"after {results['updates']:,} updates"], rows),
        "",
        "The error of the last hidden states is relative: 0 means equal to the teacher's, 1 no better than their mean. "
        f"All layers are trained together after {results['layerwise_steps']:,} updates. "
        f"Training took {results['seconds'] / 60:.1f} minutes.",
    ]
    return "\n".join(lines) + "\n"


def _draw_curve(results: dict[str, Any], folder: Path) -> None:
    """Plot error and cosine on held-out text against updates."""
    panels = {f"{_MEASURES[name]} (held-out text)": {name: results["curve"][name]} for name in ("error", "cosine")}
    draw_curves(panels, folder / "curve.png", logarithmic=True)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:.1%}" if name == "agreement" else f"{value:.4f}"
