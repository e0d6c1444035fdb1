"""Table of the linearised encoder families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linformer_kit.report.base import environment_line, table, write_report


def write_families_report(results: dict[str, Any], folder: Path) -> str:
    """Write `families.json` and `families.md`.

    Returns:
        The Markdown text.
    """
    return write_report(results, folder, "families", families_markdown)


def families_markdown(results: dict[str, Any]) -> str:
    """Each family with its errors at k = n."""
    header = ["model type", "class", "n", "linear layers", "E = F = 1", "mean pooling, padded", "saved and loaded"]
    rows = [
        [
            name,
            f"`{found['model']}`",
            f"{found['length']}",
            f"{found['linear_layers']}" + (f", {found['local_layers']} local kept" if found["local_layers"] else ""),
            _errors(found["identity_error"], found["own_error"]),
            _errors(found["mean_pool_error"], found["own_padded_error"])
            if found["own_padded_error"] is not None
            else f"{found['mean_pool_error']:.1e} (images: no padding)",
            "equal" if found["same_once_loaded"] else "different",
        ]
        for name, found in results["families"].items()
    ]
    lines = [
        "# Linearised encoders with k = n",
        "",
        environment_line(results["environment"]),
        "",
        "Small models with random weights. Largest error of the last hidden states from the model in float64; in "
        "brackets that of the original model in float32.",
        "",
        *table(header, rows),
    ]
    return "\n".join(lines) + "\n"


def _errors(error: float, own: float) -> str:
    return f"{error:.1e} ({own:.1e})"
