"""What all reports are made of: JSON, Markdown tables, and the line about the machine."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from linformer_kit.files.writing import write_whole


def write_json(results: dict[str, Any], path: Path) -> None:
    """Write results as JSON, completely or not at all; lists of numbers take one line, non-finite numbers are null."""
    numbers = json.dumps(_finite(results), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON strings hold no line breaks, so this matches no text inside a string.
    numbers = re.sub(r"\[\n([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", numbers)
    write_whole(path, numbers + "\n")


def write_report(results: dict[str, Any], folder: Path, lines: list[str], *, name: str = "metrics") -> str:
    """Write results as JSON, and the lines of Markdown beside it, in files of this name; returns the Markdown."""
    write_json(results, folder / f"{name}.json")
    text = "\n".join(lines) + "\n"
    write_whole(folder / f"{name}.md", text)
    return text


def _finite(value: Any) -> Any:
    """Replace non-finite numbers, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def shortened(text: str, characters: int) -> str:
    """At most so many characters of a text, with an ellipsis where some are left out."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def code(text: str) -> str:
    """Any text as Markdown code that is valid in a table cell."""
    text = text.replace("\n", "⏎").replace("|", "¦")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def environment_line(environment: dict[str, Any]) -> str:
    """Machine, versions, commit and date in a sentence."""
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return (
        f"{environment['device']}, {environment['threads']} threads, {environment['cpu_capability']}; "
        f"Python {environment['python']}, torch {environment['torch']}, transformers {environment['transformers']}, "
        f"linformer-kit {environment['linformer_kit']}{commit}; {environment['date']}."
    )
