"""The script for linearised encoders at a tiny size."""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertModel

from linformer_kit import linearize
from reproduce import linearised as script
from tests.reproduce.started import start


@pytest.mark.e2e
def test_results_and_their_table(tmp_path, drawn, monkeypatch):
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}

    def build(architecture, way, n, device, dtype):
        model = BertModel(BertConfig(**sizes, vocab_size=1000, max_position_embeddings=n), add_pooling_layer=False)
        return (linearize(model) if way == "linearised" else model).to(device, dtype)

    monkeypatch.setattr(script, "build", build)
    options = ["--lengths", 512, 1024, "--batch_tokens", 1024, "--repetitions", 1, "--dtype", "float32"]
    records = start(script, tmp_path, *options, "--architectures", "minilm")["records"]
    assert [(record["n"], record["mode"], record["way"], record["batch"]) for record in records] == [
        (n, mode, way, 1024 // n) for n in (512, 1024) for mode in ("forward", "train") for way in script.WAYS
    ]
    table = (tmp_path / "linearised.md").read_text()
    assert f"| pieces | {records[1]['median_s'] / 1024 * 1e6:,.3f} | " in table
