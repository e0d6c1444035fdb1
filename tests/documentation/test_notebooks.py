"""The notebooks run from top to bottom without a network, and their pages show what they printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import slow_but
from tests.documentation import given
from tests.documentation.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def printed(notebook: nbformat.NotebookNode) -> str:
    """All text that the cells printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_its_outputs_and_no_paths(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert "Error" not in printed(notebook) and "/tmp/" not in printed(notebook)
    assert path.stat().st_size < 1_000_000


@pytest.mark.e2e
@pytest.mark.parametrize("name", slow_but([], [path.stem for path in NOTEBOOKS]))
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given.write(("sentence-transformers/all-MiniLM-L6-v2",), tmp_path)
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", 4)
    for cell in notebook.cells:  # the encoder of the tests has other weights than the adapter's base model
        cell.source = cell.source.replace(', adapter="all-MiniLM-L6-v2-512"', "")
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "usage: linformer" not in printed(notebook) and "error: " not in printed(notebook)
    assert {"classify_long_documents": "long: accuracy", "make_your_encoder_linear": "BertModel"}[name] in printed(
        notebook
    )
