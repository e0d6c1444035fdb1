"""The cost of causal models at a tiny size."""

from __future__ import annotations

import pytest

from reproduce import causal as script
from tests.reproduce.started import start


@pytest.mark.e2e
def test_what_slots_keep_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *arguments: function(*arguments))
    sizes = ["--hidden_size", "32", "--num_attention_heads", "2", "--intermediate_size", "64", "--layers", "2"]
    sizes += ["--lengths", "64", "--batch_tokens", "128", "--generated", "96", "--step", "32", "--repetitions", "1"]
    records = start(script, tmp_path / "out", *sizes, "--window", "4", "--seen", "8", "--dtype", "float32")["records"]
    kept = {
        way: [each["kept_bytes"] for each in records if each.get("tokens") and each["way"] == way]
        for way in script.WAYS
    }
    per_token = 2 * 32 * 4 * 2  # keys and values of both layers
    assert kept["full attention"] == [tokens * per_token for tokens in (32, 64, 96)]
    assert kept["causal slots"] == [(1 + 24 + 8) * per_token] * 3
    assert {each["way"] for each in records if each["measured"] == "training"} == {*script.WAYS}
