"""Adapters that ship with the package: small, whole, described, and what they were when they were made."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_kit.linearized.adapter import ABOUT, CARD, read_adapter, shipped_adapters

SHIPPED = shipped_adapters()
MB = 1_000_000
each = pytest.mark.parametrize("name", SHIPPED)


def test_all_are_small_and_listed(capsys):
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in SHIPPED.values()]
    assert sizes and max(sizes) <= 8 * MB and sum(sizes) <= 20 * MB
    main(["adapters"])
    listed = capsys.readouterr().out
    assert all(f"| {name} | " in listed for name in SHIPPED)


@each
def test_one_is_whole_and_described(name, capsys):
    adapter = read_adapter(name)  # raises an error for a damaged file
    assert all(weights.dtype == torch.bfloat16 for weights in adapter.weights.values())
    assert adapter.about["base_model"]["license"] == "apache-2.0"
    main(["adapters", "--card", name])
    card = capsys.readouterr().out
    assert card == (SHIPPED[name] / CARD).read_text(encoding="utf-8")
    headings = [line for line in card.splitlines() if line.startswith("## ")]
    assert headings == ["## Figures", "## What it is not good at"]
    assert f'adapter="{name}"' in card and not any(word.startswith("/") for word in card.split())


@pytest.mark.network  # or the base model in the hub's cache
@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_recorded_embedding(name, dtype):
    about = json.loads((SHIPPED[name] / ABOUT).read_text(encoding="utf-8"))
    base, example = about["base_model"]["name"], about["example"]
    model = lk.linearize(AutoModel.from_pretrained(base, dtype=dtype), adapter=name).eval()
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=example["max_length"])
    inputs = tokenizer(example["sentence"] * example["repeated"], return_tensors="pt", truncation=True)
    with torch.no_grad():
        embedding = model(**inputs).last_hidden_state.float().mean(dim=1)[0]
    expected = torch.tensor(example["embedding"])
    torch.testing.assert_close(
        embedding / embedding.norm(), expected, rtol=0, atol=2e-6 if dtype.itemsize == 4 else 4e-3
    )
