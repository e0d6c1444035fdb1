"""Measured numbers on the pages come from committed results.

Rows between `<!-- rows of FOLDER -->` and `<!-- end -->` stand in a table of that folder of benchmarks/. A number in prose,
with decimals or a unit, stands in such rows of its page, or in a file of benchmarks/ that its paragraph links to, rounded
as it is here. Paragraphs, and items of lists, whose numbers are not measured (settings, sizes, what others found) begin
with `<!-- not measured -->`.
"""

from __future__ import annotations

import itertools
import re

import pytest

from linformer_cli.parser import RECIPES
from linformer_kit.linearized.adapter import CARD, shipped_adapters
from tests.documentation.pages import PAGES, ROOT

BENCHMARKS = ROOT / "benchmarks"
CARDS = {name: folder / CARD for name, folder in shipped_adapters().items()}

_ROWS = re.compile(r"<!-- rows of (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
_LINK = re.compile(r"\]\((?:\.\./)*benchmarks/([^)#\s]+\.(?:md|json))[^)]*\)")
_MARKED = re.compile(r"^(?:\s*[-*] )?<!-- not measured -->.*?(?=^\s*[-*] |\Z)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
_UNIT = r"(?: ?%| ×| (?:ms|s|µs|minutes|hours|nats|MiB|MB|GB|GiB|GFLOP|TFLOP|times|points)\b)"
_MEASURED = re.compile(rf"(?<![\w.,])(?:\d[\d,]*\.\d+(?!\.?\d)(?!\w)|\d[\d,]*(?={_UNIT}))")
# Code, targets of links, and numbers of papers, sections and versions.
_NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|\barXiv [\d.]+|\b(?:[Ss]ections?|Python|PyTorch|torch|transformers) [\d.]+")


def paragraphs(text: str) -> list[str]:
    """The prose of a page: no front matter, code, headings or tables."""
    text = re.sub(r"\A---\n.*?\n---\n|^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:#+ |\|).*$", "", _ROWS.sub("", text), flags=re.MULTILINE)
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]


def numbers(text: str) -> list[float]:
    """All numbers in a text."""
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


def unfounded(page: str) -> list[str]:
    """Measured numbers in the prose of a page without a result."""
    shown = numbers(" ".join(rows for _, rows in _ROWS.findall(page)))
    wrong = []
    for paragraph in paragraphs(page):
        linked = [numbers((BENCHMARKS / name).read_text(encoding="utf-8")) for name in _LINK.findall(paragraph)]
        known = sum(linked, shown)
        prose = _NAMES.sub(" ", _MARKED.sub("", paragraph))
        for match in _MEASURED.finditer(prose):
            tolerance = 0.5 * 10 ** -len(match[0].partition(".")[2]) * 1.0001
            value = float(match[0].replace(",", ""))
            if not any(abs(number - value) <= tolerance for number in known):
                wrong.append(" ".join(prose[max(0, match.start() - 40) : match.end() + 20].split()))
    return wrong


@pytest.mark.parametrize("name", PAGES)
def test_numbers_in_prose_stand_in_a_result(name):
    assert unfounded(PAGES[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", PAGES | CARDS)
def test_rows_are_those_of_the_results(name):
    for folder, rows in _ROWS.findall((PAGES | CARDS)[name].read_text(encoding="utf-8")):
        tables = (path.read_text(encoding="utf-8").splitlines() for path in (BENCHMARKS / folder).glob("*.md"))
        assert {line for line in rows.splitlines() if line} <= {*itertools.chain(*tables)}, folder


def test_numbers_of_recipes_stand_in_a_result():
    for path in RECIPES.values():
        comments = [line.removeprefix("#") for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
        links = "".join(
            f"[x](../benchmarks/{name})" for name in re.findall(r"benchmarks/(\S+\.json)", "".join(comments))
        )
        assert unfounded("\n".join([links, *comments])) == [], path.name
