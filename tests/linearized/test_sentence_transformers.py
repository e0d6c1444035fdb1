"""sentence-transformers loads a linearised embedder, where it is installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from linformer_kit.commands.cli import main
from tests.conftest import write_teacher

sentence_transformers = pytest.importorskip("sentence_transformers")


def test_loaded_and_alike(tmp_path):
    teacher = write_teacher(tmp_path / "teacher", "number was good bad 0 1 2 3 4 5 6 7 8 9", "RobertaModel")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (teacher / "modules.json").write_text(json.dumps(modules))
    (teacher / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 33, "pooling_mode_mean_tokens": True}
    (teacher / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    main(["convert", str(teacher), str(tmp_path / "linear"), "--in_place", "--projection", "mean_pool"])
    texts = ["number 7 was good", "bad", "number number number 3"]
    with torch.no_grad():
        ours, theirs = (
            sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)
            for folder in (tmp_path / "linear", teacher)
        )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
