"""What is committed under benchmarks/ is made from its JSON, and its JSON has what the reports promise."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from linformer_kit.linearized.adapter import CARD, shipped_adapters
from linformer_kit.report.distillation import distill_markdown
from linformer_kit.report.efficiency import efficiency_markdown
from linformer_kit.report.learning import learning_markdown, study_tables
from linformer_kit.report.long import long_markdown
from linformer_kit.report.spectrum import spectrum_markdown
from linformer_kit.report.systems import systems_markdown
from linformer_kit.report.theorems import theorems_markdown

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOCS = Path(__file__).parents[2] / "docs"
MARKDOWN = {
    "efficiency": efficiency_markdown,
    "learning": learning_markdown,
    "long": long_markdown,
    "metrics": distill_markdown,
    "spectrum": spectrum_markdown,
    "systems": systems_markdown,
    "theorems": theorems_markdown,
}
COMMANDS = {"metrics": "distill", "spectrum": "spectrum", "theorems": "theorems"}  # of the others `bench …`
RESULTS = sorted(path for name in MARKDOWN for path in FOLDER.glob(f"*/{name}.json"))
FIELDS = {
    "efficiency": {"settings", "baselines", "cells", "gemm", "copy", "complete"},
    "learning": {"settings", "learning_rates", "seconds_per_update", "trials", "complete"},
    "metrics": {"settings", "teacher", "student", "text", "curve", "updates", "seconds"},
    "long": {"settings", "reference", "long", "ratio", "peak_bytes", "hidden_bytes", "weight_bytes"},
    "systems": {"settings", "systems", "complete"},
    "spectrum": {"model", "text", "seq_len", "samples", "cumulative", "spread", "error", "at", "complete"},
    "theorems": {"settings", "cases", "appendix"},
}
MACHINE = {"date", "device", "threads", "torch", "transformers", "linformer_kit", "commit"}


def test_there_are_results():
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_tables_are_made_from_the_numbers(path):
    """After a change of a report: write the Markdown again from the JSON, by the function that is called here."""
    results = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == MARKDOWN[path.stem](results)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_results_say_what_they_were_made_with(path):
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["command"] == COMMANDS.get(path.stem, f"bench {path.stem}")
    assert results.keys() >= FIELDS[path.stem] | {"environment"}
    assert results["environment"].keys() >= MACHINE and results["environment"]["commit"]
    assert results.get("complete", True)


def test_the_tables_of_docs_learning_are_made_from_the_numbers():
    """Between `<!-- tables of <folder> -->` and `<!-- end -->` stands what `study_tables` makes of that folder's JSON."""
    text = (DOCS / "learning-tables.md").read_text(encoding="utf-8")
    found = re.findall(r"<!-- tables of (\S+) -->\n\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert {name for name, _ in found} == {path.parent.name for path in FOLDER.glob("*/learning.json")}
    for name, tables in found:
        results = json.loads((FOLDER / name / "learning.json").read_text(encoding="utf-8"))
        assert tables == study_tables(results, heading="###")


def test_rows_of_tables_are_those_of_the_results():
    """Between `<!-- rows of <folder> -->` and `<!-- end -->` stand some rows of the tables of that folder."""
    cards = [folder / CARD for folder in shipped_adapters().values()]
    assert all("<!-- rows of " in card.read_text(encoding="utf-8") for card in cards)
    found = [
        (folder, rows)
        for path in (DOCS.parent / "README.md", *DOCS.glob("*.md"), *cards)
        for folder, rows in re.findall(r"<!-- rows of (\S+) -->\n(.*?)<!-- end -->", path.read_text("utf-8"), re.DOTALL)
    ]
    assert found
    for folder, rows in found:
        there = {line for path in (FOLDER / folder).glob("*.md") for line in path.read_text("utf-8").splitlines()}
        assert {line for line in rows.splitlines() if line} <= there, folder


def test_texts_are_compared_with_their_record(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("corpora", FOLDER / "corpora.py")
    corpora = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpora)
    monkeypatch.setattr(corpora, "RECORD", tmp_path / "corpora.json")
    corpora.RECORD.write_text(json.dumps({"books": {"source": "a library", "files": {}}}))
    (tmp_path / "texts" / "books").mkdir(parents=True)
    book = tmp_path / "texts" / "books" / "one.txt"
    book.write_text("once")
    assert corpora.main(tmp_path / "texts", write=True) == 0 and corpora.main(tmp_path / "texts", write=False) == 0
    book.write_text("twice")
    assert corpora.main(tmp_path / "texts", write=False) == 2
    assert "books/one.txt: expected SHA-256 " in capsys.readouterr().out
    book.unlink()
    assert corpora.main(tmp_path / "texts", write=False) == 2
    assert capsys.readouterr().out.splitlines()[0].endswith("got no file")
