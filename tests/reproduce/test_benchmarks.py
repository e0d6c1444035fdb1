"""The committed results: tables are made from their numbers, and pages show rows of these tables."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from linformer_kit.report.base import environment_line
from reproduce import corpora

FOLDER = Path(__file__).parents[2] / "benchmarks"
DOCS = Path(__file__).parents[2] / "docs"


def results_of_scripts() -> dict[Path, dict]:
    contents = {path: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*/**/*.json"))}
    return {path: content for path, content in contents.items() if isinstance(content, dict) and "script" in content}


RESULTS = results_of_scripts()


def row_of(folder: str) -> str:
    """The row of a folder in the table of results; it says which run was ended before its end."""
    return next(row for row in (FOLDER / "README.md").read_text("utf-8").splitlines() if f"]({folder}/" in row)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.parent.relative_to(FOLDER)))
def test_tables_are_made_from_the_numbers(path):
    """After a change of a script: `python -m reproduce.common benchmarks/FOLDER` makes table and figure again."""
    content = RESULTS[path]
    assert content["records"] and path.stem == content["script"]
    assert content["complete"] or "ended " in row_of(path.relative_to(FOLDER).parts[0])
    script = importlib.import_module(f"reproduce.{content['script']}")
    machines = "\n".join(map(environment_line, content["environments"]))
    expected = f"{script.table(content).rstrip()}\n\n{machines}\n"
    assert path.with_suffix(".md").read_text("utf-8") == expected


def test_texts_are_compared_with_their_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpora, "RECORD", tmp_path / "corpora.json")
    corpora.RECORD.write_text(json.dumps({"books": {"source": "a library", "files": {}}}))
    book = tmp_path / "texts" / "books" / "one.txt"
    book.parent.mkdir(parents=True)
    book.write_text("once")
    assert corpora.main(tmp_path / "texts", write=True) == 0 and corpora.main(tmp_path / "texts", write=False) == 0
    book.write_text("twice")
    assert corpora.main(tmp_path / "texts", write=False) == 2
    assert "books/one.txt: expected SHA-256 " in capsys.readouterr().out
