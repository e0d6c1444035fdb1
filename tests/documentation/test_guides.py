"""All commands and code blocks of the README and of each guide, the notebooks, and the examples, run offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from sentence_transformers import SentenceTransformer

import linformer_kit as lk
from tests.conftest import slow_but
from tests.documentation import given
from tests.documentation.conftest import run_python
from tests.documentation.pages import PAGES, ROOT, steps

QUICK = ("how-it-works.md", "operator.md", "python.md")
GUIDES = [page for page in PAGES if page != "README.md" and steps(page)]

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


@pytest.mark.e2e
def test_readme(read):
    read("README.md")


@pytest.mark.e2e
@pytest.mark.parametrize("page", slow_but(QUICK, GUIDES))
def test_guide(page, read):
    read(page)


@pytest.mark.slow
def test_the_example_of_vectors_learns(capsys):
    """Chance is 0.5."""
    blocks = [step.text for step in steps("python.md") if "lk.LinformerEncoder(" in step.text]
    assert len(blocks) == 1
    run_python(blocks[0], ())
    assert float(capsys.readouterr().out.removeprefix("accuracy ")) > 0.9


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


@pytest.mark.slow
def test_embed_with_ray(tmp_path):
    """Every document once, with its vector, from two workers on this machine."""
    pytest.importorskip("ray")
    import pyarrow.parquet

    given.write(("sentence-transformers/all-MiniLM-L6-v2",), tmp_path)
    base = SentenceTransformer(str(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"), device="cpu")
    model = lk.linearize(base, max_position_embeddings=1024)
    model.save(str(tmp_path / "my-embedder"))
    texts = given.texts(41, 331)
    rows = ({"id": number, "text": text} for number, text in enumerate(texts))
    (tmp_path / "articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["my-embedder", "articles.jsonl", "vectors", "--workers", "2", "--batch_size", "7"]
    for status in (0, 1):  # the second time the output exists
        result = subprocess.run(
            [sys.executable, ROOT / "examples" / "embed_with_ray.py", *words],
            cwd=tmp_path,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == status, result.stderr
    table = pyarrow.parquet.read_table(tmp_path / "vectors").sort_by("id").to_pydict()
    assert table["text"] == texts
    np.testing.assert_allclose(np.array(table["embedding"]), model.encode(texts), rtol=1e-4, atol=1e-5)
