"""Build the site from the pages of the repository: python website/build.py.

The pages keep their places, so their links hold here as in the repository: README.md becomes the first page, and
`docs/`, `benchmarks/`, `reproduce/`, CHANGELOG.md and CONTRIBUTING.md are copied. The notebooks of `examples/` become
pages with the outputs that are stored in them. Three pages are generated: the reference of the public API (from
docstrings), that of the commands (from their parsers), and a gallery of pictures. Pages of results are in the
navigation under their names in benchmarks/README.md. Warnings of the build are errors, and so is a link to a page, a
heading or a file that is not on the site.
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

try:
    from nbconvert import MarkdownExporter
    from nbconvert.writers import FilesWriter

    import linformer_kit
    from linformer_cli.parser import parse
    from linformer_cli.settings import TOPICS as COMMAND_TOPICS
    from linformer_cli.settings.declare import COMMANDS
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is not installed: pip install -r requirements-docs.txt") from None

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "website"
PAGES, SITE = BUILD / "pages", BUILD / "site"
COPIED = ("docs", "benchmarks", "examples", "reproduce", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
# In HTML: code in a line, its words that fit a phone, a picture with its address, a cell of prose.
CODE = r"(?<!<pre>)(?<!</span>)<code>[^<]*</code>"
WORD = r"(?<=[\s>])[^\s<]{2,44}(?=[\s<])"
PICTURE = r'((?:<picture>[^>]*>\s*)?<img [^>]*?src="([^"]+)"[^>]*>(?:</picture>)?)'
LONG = r"<td>(?=[^\n]{60,}</td>)"
# Public names of the reference, by topic.
TOPICS = {
    "Linearise an encoder": ("linearize", "optimize"),
    "Models": (
        "LinformerConfig",
        "LinformerEncoder",
        "LinformerModel",
        "LinformerForMaskedLM",
        "LinformerForCausalLM",
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
        "MatrixProjection",
        "WindowProjection",
        "register_projection",
    ),
    "Other checkpoints": ("from_linformer", "load_fairseq_checkpoint"),
    "Analysis": ("attention_spectrum", "Spectrum", "choose_projected_dims"),
    "Errors": ("InputError",),
}
# Pictures of the gallery, best first: file in benchmarks/, page with its command, what is seen.
GALLERY = (
    (
        "documents-minilm-4096_xeon-2-cores_202611/documents.png",
        "docs/linearize.md",
        "Ways to embed long texts with MiniLM. Averaged pieces and linear attention find sentences late in a text and "
        "hidden numbers. Truncation and full attention with repeated positions lose them. Below on the right: the "
        "time of full attention grows fastest.",
    ),
    (
        "forward-bfloat16_epyc-2-cores_202611/table3_figure2.png",
        "docs/speed.md",
        "Inference on a CPU with AVX-512. The time per token of a Linformer stays the same up to 65,536 tokens, "
        "that of full attention grows (left). The middle and the right show the time and memory saved, beside the "
        "paper's figures.",
    ),
    (
        "forward-and-training-float32_zen3-2-cores_202611/table3_figure2.png",
        "docs/speed.md",
        "Inference (above) and training (below) on a CPU with AVX2.",
    ),
    (
        "table3_h100_202611/table3_figure2.png",
        "docs/speed.md",
        "Inference on a GPU, an H100. Full attention is a fused kernel today, so less time is saved than in the paper.",
    ),
    (
        "systems-bfloat16_epyc-2-cores_202611/table1.png",
        "docs/speed.md",
        "Time per token of the paper's Table 1, of Longformer, and of other Linformers in PyTorch. All efficient "
        "encoders were disturbed at 16,384 tokens.",
    ),
    (
        "figure3_h100_202611/figure3.png",
        "docs/learning.md",
        "Pretraining, as in Figure 3 of the paper: perplexity by the number of slots (a, b), by sharing (c) and "
        "by length (d). In (e) neighbours and dynamic slots come close to the Transformer.",
    ),
    (
        "learning_epyc-2-cores_202611/learning.png",
        "docs/learning.md",
        "From above: how E and F should start; a convolution closes most of the gap to the Transformer; in equal "
        "time, few dynamic slots are level with it at 512 tokens and ahead of it at 2,048.",
    ),
    (
        "learning-neighbours_zen4-2-cores_202611/learning.png",
        "docs/learning.md",
        "Beside a convolution and dynamic slots, exact neighbours hardly matter.",
    ),
    (
        "table2-minilm_zen4-2-cores_202611/table2.png",
        "docs/learning.md",
        "Fine-tuned on the paper's tasks, MiniLM and its linear version are equally accurate; both are better "
        "than a classifier by words alone.",
    ),
    (
        "distill-minilm_zen4-2-cores_202611/curve.png",
        "docs/linearize.md",
        "Distillation of a linear MiniLM: the error of its hidden states falls, and its embeddings come closer to "
        "the original's.",
    ),
    (
        "figure1_xeon-2-cores_202611/figure1.png",
        "docs/paper.md",
        "Spectra of attention, Figure 1 of the paper: how much of the sum of singular values the largest ones "
        "have, by layer, with trained and with random weights. On the right by head: dark ones are not of low "
        "rank.",
    ),
    (
        "theorems_xeon-2-cores_202611/theorems.png",
        "docs/paper.md",
        "Theorems 1 and 2 tried: the errors of the proofs' construction (red) stay above those of the best matrix "
        "of rank k (black) and of pooling (blue).",
    ),
)


def write_pages() -> None:
    """All pages of the site, in an empty folder."""
    copy_pages()
    link_results()
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
            shutil.copytree(source, PAGES / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, PAGES / name)
    shutil.copy(ROOT / "README.md", PAGES / "index.md")
    shutil.copy(ROOT / "website" / "site.css", PAGES)
    for page in (PAGES / "index.md", *(PAGES / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("](../README.md", "](../index.md")
        text = re.sub(r"^(\*\*.*\*\*)\n- ", r"\1\n\n- ", text, flags=re.MULTILINE)  # lists begin after an empty line
        page.write_text(text, encoding="utf-8")


def result_pages() -> dict[str, tuple[str, str]]:
    """Name and question of each page of results, by its path in `benchmarks/`, from the table there."""
    rows = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [row[2:].split(" | ") for row in rows if row.startswith("| [")]
    return {page: (name, row[1]) for row in cells for name, page in re.findall(r"\[([^]]+)\]\((\S+\.md)\)", row[0])}


def link_results() -> None:
    """Below the title of each page of results: its name, what was asked, and a link to all results."""
    for path, (name, asked) in result_pages().items():
        page = PAGES / "benchmarks" / path
        up = "../" * path.count("/")
        title, _, rest = page.read_text(encoding="utf-8").partition("\n")
        page.write_text(f"{title}\n\n**{name}**: {asked} ([all results]({up}README.md))\n{rest}", encoding="utf-8")


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
    for topic in COMMAND_TOPICS:
        lines += ["", f"## {topic}"]
        for name, command in ((name, each) for name, each in COMMANDS.items() if each.topic == topic):
            lines += [
                "",
                f"### linformer {name}",
                "",
                f"{command.summary}. {command.reason}",
                "",
                "```text",
                help_of(name),
                "```",
            ]
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
    """One page of pictures with what is seen on each, and links to its results and its page."""
    lines = ["# Gallery", "", "All [results](../benchmarks/README.md) have tables, and many of them a picture."]
    for picture, page, caption in GALLERY:
        folder = picture.partition("/")[0]
        results = "metrics.md" if folder.startswith("distill") else f"{Path(picture).stem}.md"
        lines += ["", f"![{caption.partition('.')[0]}](../benchmarks/{picture})", "", caption]
        lines += [f"([results](../benchmarks/{folder}/{results}), [page](../{page}))"]
    (PAGES / "reference" / "gallery.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def settings() -> str:
    """The settings of the site: with the pages of results, and a link to the repository where GitHub builds it."""
    text = (ROOT / "website" / "zensical.toml").read_text(encoding="utf-8")
    pages = "".join(f'{{ "{name}" = "benchmarks/{path}" }}, ' for path, (name, _) in result_pages().items())
    text = text.replace('"Each result" = []', f'"Each result" = [{pages}]')
    repository = os.environ.get("GITHUB_REPOSITORY")
    if repository is None:
        return text
    address = f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
    return text.replace("[project]\n", f'[project]\nrepo_url = "{address}"\nrepo_name = "{repository}"\n', 1)


def finish(html: str) -> str:
    """A page whose words of code stay on one line, whose pictures are links to their full size, and with long cells."""
    before, start, article = html.partition("<article")
    article = re.sub(CODE, lambda found: re.sub(WORD, r"<span>\g<0></span>", found[0]), article)
    article = re.sub(PICTURE, r'<a href="\2">\1</a>', article)
    return before + start + re.sub(LONG, '<td class="long">', article)


class _Links(html.parser.HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links |= {value for name in ("href", "src", "srcset") if (value := values.get(name))}
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
    (BUILD / "zensical.toml").write_text(settings(), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=False)
    for page in SITE.rglob("*.html"):
        page.write_text(finish(page.read_text(encoding="utf-8")), encoding="utf-8")
    broken = [] if done.returncode else broken_links(SITE)
    for line in broken:
        print(f"broken link: {line}", file=sys.stderr)
    if done.returncode or broken:
        raise SystemExit(1)
    print(f"The site is in {SITE.relative_to(ROOT)}/index.html: {len(list(SITE.rglob('*.html')))} pages.")


if __name__ == "__main__":
    main()
