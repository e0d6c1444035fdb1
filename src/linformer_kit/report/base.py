"""What all reports are made of: JSON, Markdown tables, the line about the machine, and one HTML file of all."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from linformer_kit.files.runs import PAGE
from linformer_kit.files.writing import write_whole

_CAPTIONS = {
    "perplexity": "Perplexity on the masked tokens of the validation text, by update; lower is better.",
    "curve": "Training and validation measures, by update.",
    "confusion": "Validation texts of each class (rows) by predicted class (columns).",
}
_NEXT_COMMANDS = {
    "pretrain": "linformer finetune --model MODEL --train_file reviews.csv --output_dir my-classifier",
    "finetune": "linformer predict MODEL new-texts.csv --output answers.jsonl",
    "evaluate": "linformer predict MODEL new-texts.csv --output answers.jsonl",
    "distill": "linformer embed MODEL texts.jsonl --output vectors.npy",
}


def write_json(results: dict[str, Any], path: Path) -> None:
    """Write results as JSON, completely or not at all; lists of numbers take one line, non-finite numbers are null."""
    numbers = json.dumps(_finite(results), indent=2, ensure_ascii=False, allow_nan=False)
    # JSON strings hold no line breaks, so this matches no text inside a string.
    numbers = re.sub(r"\[\n([^\[\]{}\"]*)\]", lambda match: f"[{' '.join(match[1].split())}]", numbers)
    write_whole(path, numbers + "\n")


def write_report(results: dict[str, Any], folder: Path, lines: list[str]) -> None:
    """Write `metrics.json`, the lines of Markdown as `metrics.md`, and `report.html` with the figures of the folder."""
    write_json(results, folder / "metrics.json")
    text = "\n".join(lines) + "\n"
    write_whole(folder / "metrics.md", text)
    environment = Environment(loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined)
    page = environment.get_template("page.html.j2").render(  # which escapes all but the HTML of `html_of`
        title=text.partition("\n")[0].removeprefix("# "),
        body=html_of(text),
        figures=[
            {"caption": _CAPTIONS.get(path.stem, path.stem), "data": base64.b64encode(path.read_bytes()).decode()}
            for path in sorted(folder.glob("*.png"))
        ],
        command=results["command"],
        next_command=_NEXT_COMMANDS[results["command"]],
        date=datetime.date.today().isoformat(),
        settings=_yaml(results["settings"]),
        environment=_yaml(results["environment"]),
    )
    write_whole(folder / PAGE, page)


def html_of(text: str) -> Markup:
    """Markdown as HTML. HTML and images within the Markdown are shown as text, so that nothing is loaded."""
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(text))


def _yaml(values: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(values))  # YAML has no tuples, and no subclasses of str such as torch's version
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


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
