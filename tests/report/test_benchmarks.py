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
from linformer_kit.report.learning import learning_markdown, study_tables
from linformer_kit.report.spectrum import spectrum_markdown
from linformer_kit.report.table2 import table2_markdown
from linformer_kit.report.theorems import theorems_markdown

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOCS = Path(__file__).parents[2] / "docs"
MARKDOWN = {
    "documents": documents_markdown,
    "embeddings": embeddings_markdown,
    "learning": learning_markdown,
    "metrics": distill_markdown,
    "spectrum": spectrum_markdown,
    "table2": lambda results: table2_markdown(results, chosen_cells(results)),
    "theorems": theorems_markdown,
}
COMMANDS = {"metrics": "distill", "spectrum": "spectrum", "theorems": "theorems"}  # of the others `bench …`
RESULTS = sorted(path for name in MARKDOWN for path in FOLDER.glob(f"*/{name}.json"))
FIELDS = {
    "documents": {"settings", "methods", "positions", "scores", "cost", "complete"},
    "learning": {"settings", "learning_rates", "seconds_per_update", "trials", "complete"},
    "metrics": {"settings", "teacher", "student", "text", "curve", "updates", "seconds"},
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
