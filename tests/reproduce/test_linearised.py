"""The script for linearised encoders and exact windows at a tiny size."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from reproduce import linearised as script
from tests.reproduce.started import start

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}


def tiny(architecture, n):
    torch.manual_seed(0)
    if architecture == "minilm":
        return BertModel(BertConfig(**SIZES, vocab_size=1000, max_position_embeddings=n), add_pooling_layer=False)
    window = {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention"]}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    return ModernBertModel(ModernBertConfig(**SIZES, **window, **special, vocab_size=1000, max_position_embeddings=n))


def measured(folder, monkeypatch, *options: object) -> list[dict]:
    monkeypatch.setattr(script, "original", tiny)
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *given: function(*given))
    return start(script, folder, *options, "--repetitions", 1, "--dtype", "float32")["records"]


@pytest.mark.e2e
def test_results_and_their_table(tmp_path, monkeypatch):
    arguments = ("--architectures", "minilm", "--lengths", "512", "1024", "--batch_tokens", "1024")
    records = measured(tmp_path, monkeypatch, *arguments)
    assert [(record["n"], record["mode"], record["way"], record["batch"]) for record in records] == [
        (n, mode, way, 1024 // n)
        for n in (512, 1024)
        for mode in ("forward", "train")
        for way in ("original", "pieces", "linearised")
    ]
    table = (tmp_path / "linearised.md").read_text()
    assert f"| pieces | {records[1]['median_s'] / 1024 * 1e6:,.3f} | " in table


@pytest.mark.e2e
def test_exact_ways(tmp_path, monkeypatch):
    ways = ("original", "exact_windows", "optimized", "linearised")
    arguments = ("--architectures", "modernbert", "--ways", *ways, "--lengths", "513", "--modes", "forward")
    records = measured(tmp_path, monkeypatch, *arguments, "--batch_tokens", "1")
    assert [record["way"] for record in records] == list(ways)
    for record in records[1:3]:
        assert 0 <= record["difference"] < 1e-5 < record["largest"]
    table = (tmp_path / "linearised.md").read_text()
    assert f"| exact windows | {records[0]['median_s'] / records[1]['median_s']:.2f} |" in table
