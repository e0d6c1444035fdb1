"""Report of a distillation, and card of an adapter: distance from student to teacher, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from linformer_cli.settings import DistillSettings
from linformer_cli.settings.files import spelled
from linformer_kit.report.base import table, write_report
from linformer_kit.report.figures import draw_curves

_MEASURES = {
    "cosine": "cosine of mean embeddings",
    "error": "error of the last hidden states",
    "agreement": "predictions equal to the teacher's",
    "loss": "loss",
}
# The card does not repeat these settings: the teacher is in the command, the others change no result.
_NOT_REPEATED = ("teacher", "report_to", "resume", "save_steps", "save_total_limit", "logging_steps")


def write_distill_report(results: dict[str, Any], folder: Path) -> None:
    """Write the distance from student to teacher, before and after, and its curve into a folder."""
    panels = {f"{_MEASURES[name]} (held-out text)": {name: results["curve"][name]} for name in ("error", "cosine")}
    draw_curves(panels, folder / "curve.png", logarithmic=True)
    teacher, student, curve = results["teacher"], results["student"], results["curve"]
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
        f"sharing {student['sharing']}, projection {student['projection']}{_exact(student)}, "
        f"{student['parameters']:,} parameters{trained}.",
        f"Text: {results['text']['description']}.{long}",
        "",
        *_before_and_after(curve, ["on held-out text", "before", f"after {results['updates']:,} updates"]),
        "",
        "The error of the last hidden states is relative: 0 means equal to the teacher's, 1 no better than their mean. "
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
    student, text, settings = made["student"], made["text"], made["settings"]
    fields = {"base_model": base["name"], "library_name": "peft", "license": base["license"], "tags": ["linformer"]}
    shown = {name: made["curve"][name] for name in ("cosine", "error")}
    layers = "all layers" if settings["layers"] is None else f"layers {spelled(settings['layers'])}"
    defaults = vars(DistillSettings(teacher=settings["teacher"]))
    options = [
        f"--{name} {spelled(value)}"
        for name, value in settings.items()
        if name not in _NOT_REPEATED and value != defaults.get(name)
    ]
    lines = [
        "---",
        yaml.safe_dump(fields, sort_keys=False).strip(),
        "---",
        "",
        f"# Linear attention for {base['name']}",
        "",
        f"With this adapter {base['name']} reads texts of up to {student['seq_len']:,} tokens, with linear attention "
        f"in {layers}: k {student['projected_dim']}, "
        f"projection {student['projection']}, sharing {student['sharing']}{_exact(student)}.",
        "",
        "```python",
        "import linformer_kit as lk",
        "from transformers import AutoModel",
        "",
        f'model = lk.linearize(AutoModel.from_pretrained("{base["name"]}"), adapter="FOLDER")',
        "```",
        "",
        f"Trained by distillation on {text['description']}. "
        f"{made['updates']:,} updates of {settings['per_device_train_batch_size']} texts, "
        f"{made['seconds'] / 3600:.1f} hours, seed {settings['seed']}; "
        f"rank {student['adapter']['rank']}, {student['adapter']['parameters']:,} parameters in bfloat16.",
        "",
        "```",
        " \\\n  ".join([f"linformer distill {base['name']} OUTPUT", *options]),
        "```",
        "",
        *_before_and_after(shown, ["on held-out text, compared with the base model", "before", "after"]),
    ]
    return "\n".join(lines) + "\n"


def _exact(student: dict[str, Any]) -> str:
    """The tokens that a query attends to exactly, for a list of sizes."""
    return "".join(f", {name} {count}" for name, count in student["exact"].items() if count)


def _before_and_after(curve: dict[str, Any], header: list[str]) -> list[str]:
    """A table of the first and the last value of each measure."""
    rows = [
        [words, *(_shown(name, curve[name][place][1]) for place in (0, -1))]
        for name, words in _MEASURES.items()
        if curve.get(name)
    ]
    return table(header, rows)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:.1%}" if name == "agreement" else f"{value:.4f}"
