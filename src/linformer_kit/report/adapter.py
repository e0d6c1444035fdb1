"""Card of an adapter: base model, settings, training and figures, as the README.md of its folder."""

from __future__ import annotations

from typing import Any

import yaml

from linformer_cli.settings import DistillSettings
from linformer_cli.settings.files import spelled
from linformer_kit.report.base import table

_FIGURES = {"cosine": "cosine of mean embeddings", "error": "error of the last hidden states"}
# The teacher is named in the command; the others change no result.
_NOT_REPEATED = ("teacher", "report_to", "resume", "save_steps", "save_total_limit", "logging_steps")


def adapter_card(about: dict[str, Any]) -> str:
    """The card as Markdown, with the fields that model hubs read at its top.

    Args:
        about: Contents of the adapter's `linformer.json`.
    """
    base, made = about["base_model"], about["distillation"]
    student, text, settings = made["student"], made["text"], made["settings"]
    fields = {"base_model": base["name"], "library_name": "peft", "license": base["license"], "tags": ["linformer"]}
    exact = "".join(f", {name} {count}" for name, count in student["exact"].items() if count)
    rows = [[words, *(f"{made['curve'][name][place][1]:.4f}" for place in (0, -1))] for name, words in _FIGURES.items()]
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
        f"projection {student['projection']}, sharing {student['sharing']}{exact}.",
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
        *table(["on held-out text, compared with the base model", "before", "after"], rows),
    ]
    return "\n".join(lines) + "\n"
