"""What is committed under benchmarks/ is made from its JSON, and its JSON has what the reports promise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from linformer_kit.experiments.quality.table2_cells import chosen_cells
from linformer_kit.report.distillation import distill_markdown
from linformer_kit.report.documents import documents_markdown
from linformer_kit.report.embeddings import embeddings_markdown
from linformer_kit.report.long import long_markdown
from linformer_kit.report.systems import systems_markdown
from linformer_kit.report.table2 import table2_markdown

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOCS = Path(__file__).parents[2] / "docs"
MARKDOWN = {
    "documents": documents_markdown,
    "embeddings": embeddings_markdown,
    "long": long_markdown,
    "metrics": distill_markdown,
    "systems": systems_markdown,
    "table2": lambda results: table2_markdown(results, chosen_cells(results)),
}
COMMANDS = {"metrics": "distill"}  # of the others `bench …`
RESULTS = sorted(path for name in MARKDOWN for path in FOLDER.glob(f"*/{name}.json"))
FIELDS = {
    "documents": {"settings", "methods", "positions", "scores", "cost", "complete"},
    "efficiency": {"settings", "baselines", "cells", "gemm", "copy", "complete"},
    "embeddings": {"settings", "models", "complete"},
    "metrics": {"settings", "teacher", "student", "text", "curve", "updates", "seconds"},
    "long": {"settings", "reference", "long", "ratio", "peak_bytes", "hidden_bytes", "weight_bytes"},
    "systems": {"settings", "systems", "complete"},
    "table2": {"settings", "models", "fingerprints", "cells", "paper", "complete"},
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
