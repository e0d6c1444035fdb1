"""Examples that need a package which is not in requirements.txt."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import linformer_kit as lk
from tests.documentation import given
from tests.documentation.pages import ROOT


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
