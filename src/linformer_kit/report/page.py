"""Results as one HTML file that needs no network: the Markdown report, the figures, and how to repeat it."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markdown_it import MarkdownIt
from markupsafe import Markup

from linformer_kit.files.runs import PAGE
from linformer_kit.files.writing import write_whole


def write_page(results: dict[str, Any], text: str, folder: Path) -> None:
    """Write `report.html` from results, their Markdown report and the PNG files of the folder.

    Args:
        results: Results with `command`, `settings` and, unless the results have none, `environment` and `versions`.
        text: The report.
        folder: Folder of the figures, and of the page.
    """
    machine: dict[str, Any] = {name: results[name] for name in ("environment", "versions") if name in results}
    page = _template().render(  # which escapes all but the HTML of `html_of`
        title=title_of(text),
        body=html_of(text),
        figures=[_figure(path) for path in sorted(folder.glob("*.png"))],
        command=results.get("command", ""),
        settings=_yaml(results.get("settings", {})),
        environment=_yaml(machine),
    )
    write_whole(folder / PAGE, page)


def html_of(text: str) -> Markup:
    """Markdown as HTML. HTML and images within the Markdown are shown as text, so that nothing is loaded."""
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(text))


def title_of(text: str) -> str:
    """The first heading of a Markdown text."""
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "Results")


def _figure(path: Path) -> dict[str, str]:
    """A PNG file in base64, with a caption from its name."""
    caption = path.stem.replace("_", " ").replace("-", " ")
    return {"caption": caption, "data": base64.b64encode(path.read_bytes()).decode()}


def _yaml(values: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(values))  # YAML has no tuples, and no subclasses of str such as torch's version
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


@functools.cache
def _template() -> Template:
    loader = PackageLoader(__package__)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")
