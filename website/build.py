"""Build the site from the pages of the repository: python website/build.py.

The pages keep their places, so their links hold here as in the repository: README.md becomes the first page, and
`docs/`, `benchmarks/`, `reproduce/`, CHANGELOG.md and CONTRIBUTING.md are copied. The notebooks of `examples/` become
pages with the outputs that are stored in them. Three pages are generated: the reference of the public API (from
docstrings), that of the commands (from their parsers), and a gallery of all pictures with their commands. Warnings of
the build are errors, and so is a link to a page, a heading or a file that is not on the site.
"""

from __future__ import annotations

import contextlib
import html.parser
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path
from unittest import mock

from nbconvert import MarkdownExporter
from nbconvert.writers import FilesWriter

import linformer_kit
from linformer_cli.parser import parse
from linformer_cli.table import COMMANDS

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "website"
PAGES, SITE = BUILD / "pages", BUILD / "site"
COPIED = ("docs", "benchmarks", "examples", "reproduce", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
# Public names of the reference, by topic.
TOPICS = {
    "Linearise an encoder": ("linearize",),
    "Models": (
        "LinformerConfig",
        "LinformerModel",
        "LinformerForMaskedLM",
        "LinformerForSequenceClassification",
        "LinformerForTokenClassification",
        "LinformerForQuestionAnswering",
        "LinformerPreTrainedModel",
    ),
    "Attention and projections": (
        "LinformerAttention",
        "LinearProjection",
        "MeanPoolProjection",
        "MaxPoolProjection",
        "ConvProjection",
        "DynamicProjection",
        "RandomProjection",
    ),
    "Other checkpoints": ("load_encoder_checkpoint", "load_fairseq_checkpoint"),
    "Several processes": ("SequenceParallel",),
    "Analysis": ("attention_spectrum", "Spectrum", "choose_projected_dims"),
    "Errors": ("InputError",),
}


def write_pages() -> None:
    """All pages of the site, in an empty folder."""
    copy_pages()
    write_notebooks()
    (PAGES / "reference").mkdir()
    write_python_reference()
    write_command_reference()
    write_gallery()


def copy_pages() -> None:
    """The pages of the repository, each in its place."""
    if BUILD.exists():
        shutil.rmtree(BUILD)
    PAGES.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, PAGES / name, ignore=shutil.ignore_patterns("__pycache__", "report.html"))
        else:
            shutil.copy(source, PAGES / name)
    shutil.copy(ROOT / "README.md", PAGES / "index.md")
    for page in (PAGES / "docs").glob("*.md"):
        page.write_text(page.read_text(encoding="utf-8").replace("](../README.md", "](../index.md"), encoding="utf-8")


def write_notebooks() -> None:
    """One page for each notebook, with its pictures beside it."""
    exporter = MarkdownExporter()
    for notebook in sorted((PAGES / "examples").glob("*.ipynb")):
        page, resources = exporter.from_filename(
            str(notebook), resources={"output_files_dir": f"{notebook.stem}_files", "unique_key": notebook.stem}
        )
        FilesWriter(build_directory=str(notebook.parent)).write(page, resources, notebook_name=notebook.stem)


def write_python_reference() -> None:
    """One page of all public names, from their docstrings."""
    public = set(linformer_kit.__all__) - {"__version__"}
    listed = set(itertools.chain(*TOPICS.values()))
    if public != listed:
        raise SystemExit(f"TOPICS: expected all public names once, got a difference of {sorted(public ^ listed)}")
    lines = ["# Python reference", "", "After `import linformer_kit as lk`, all of these are `lk.NAME`."]
    for topic, names in TOPICS.items():
        lines += ["", f"## {topic}"]
        for name in names:
            home = getattr(linformer_kit, name).__module__
            lines += ["", f"::: {home}.{name}"]
    (PAGES / "reference" / "python.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_command_reference() -> None:
    """One page of the help of all commands, by topic."""
    lines = ["# Command reference", "", "The output of `linformer COMMAND --help`."]
    for topic, commands in itertools.groupby(COMMANDS.items(), key=lambda item: item[1].topic):
        lines += ["", f"## {topic}"]
        for name, command in commands:
            lines += ["", f"### linformer {name}", "", f"{command.summary}.", "", "```text", help_of(name), "```"]
    (PAGES / "reference" / "commands.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def help_of(name: str) -> str:
    """What `linformer NAME --help` prints."""
    with (
        mock.patch.dict(os.environ, COLUMNS="100"),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.suppress(SystemExit),
    ):
        parse([*name.split(), "--help"])
    return output.getvalue().rstrip()


def write_gallery() -> None:
    """One page of all pictures of `benchmarks/`, each with what it answers and its results, which name the command."""
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = [line.strip(" |").split(" | ") for line in table.splitlines() if line.startswith("|")]
    lines = [
        "# Gallery",
        "",
        "The pictures that the commands drew for [Results by processor](../benchmarks/README.md).",
    ]
    for folder in sorted({path.parent for path in ROOT.glob("benchmarks/*/*.png")}):
        page, answers = next(
            (link, row[-1])
            for row in rows
            for link in re.findall(r"\]\(([^)]+)\)", row[0])
            if link.startswith(f"{folder.name}/")
        )
        lines += ["", f"## {folder.name.replace('_', ', ')}", "", f"{answers[0].upper()}{answers[1:]}.", ""]
        lines += [
            f"![{path.stem.replace('_', ' ')}](../{path.relative_to(ROOT)})\n" for path in sorted(folder.glob("*.png"))
        ]
        lines += [f"[Results and command](../benchmarks/{page})"]
    (PAGES / "reference" / "gallery.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Links(html.parser.HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links |= {value for name in ("href", "src") if (value := values.get(name))}
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere, as `page: link`."""
    read = {}
    for path in site.rglob("*.html"):
        read[path] = _Links()
        read[path].feed(path.read_text(encoding="utf-8"))
    broken = []
    for page, found in read.items():
        for link in sorted(found.links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            path = urllib.parse.unquote(parts.path)
            target = page if not path else (site / path[1:] if path.startswith("/") else page.parent / path)
            target = (target / "index.html" if target.is_dir() else target).resolve()
            anchors = read[target].anchors | {"", "__skip"} if target in read else None
            if not (target.exists() and target.is_relative_to(site.resolve())) or (
                anchors is not None and urllib.parse.unquote(parts.fragment) not in anchors
            ):
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


def main() -> None:
    write_pages()
    shutil.copy(ROOT / "website" / "zensical.toml", BUILD)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=False)
    broken = [] if done.returncode else broken_links(SITE)
    for line in broken:
        print(f"broken link: {line}", file=sys.stderr)
    if done.returncode or broken:
        raise SystemExit(1)
    print(f"The site is in {SITE.relative_to(ROOT)}/index.html: {len(list(SITE.rglob('*.html')))} pages.")


if __name__ == "__main__":
    main()
