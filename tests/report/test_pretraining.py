"""Tables and figures need only the JSON."""

from __future__ import annotations

import copy

import pytest
from PIL import Image

from linformer_kit.report.pretraining import pretrain_markdown, write_pretrain_report

MODEL = {
    "parameters": 710_528,
    "projection_matrices": 4,
    "updates": 20,
    "validation_loss": 2.0,
    "curve": [(0, 7.0), (10, 3.0), (20, 2.0)],
    "tokens_per_second": 1234.5,
}
RESULTS = {
    "command": "pretrain",
    "settings": {},
    "unigram_entropy": 6.0,
    "corpus": {
        "description": "13 files",
        "vocab_size": 2048,
        "seq_len": 23,
        "train_sequences": None,
        "validation_sequences": 1281,
    },
    "models": {"linformer": MODEL, "full": {**MODEL, "validation_loss": 1.0}},
}


def test_markdown_holds_the_numbers():
    text = pretrain_markdown(RESULTS)
    assert "| Linformer | 710,528 | 20 | 2.000 | 7.4 | 1,234 |" in text
    assert "| Transformer (full attention) | 710,528 | 20 | 1.000 | 2.7 | 1,234 |" in text
    assert "| unigram (token frequencies alone) |  |  | 6.000 | 403.4 |  |" in text
    assert "a stream to train and 1,281 to validate" in text


@pytest.mark.parametrize("loss", [2.0, 1e4])
def test_files(tmp_path, loss):
    results = copy.deepcopy(RESULTS)
    results["models"]["linformer"]["curve"][0] = (0, loss)
    text = write_pretrain_report(results, tmp_path)
    assert (tmp_path / "metrics.md").read_text() == text
    assert Image.open(tmp_path / "perplexity.png").size == (900, 675)
