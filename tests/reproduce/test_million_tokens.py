"""The script for one very long pass, at a tiny size."""

from __future__ import annotations

import pytest

from reproduce import million_tokens as script
from tests.reproduce.started import start


@pytest.mark.slow
def test_results_and_their_table(tmp_path):
    small = ["--hidden_size", 30, "--num_attention_heads", 5, "--intermediate_size", 44, "--vocab_size", 101]
    small += ["--layers", 2, "--projected_dim", 13, "--dtype", "float32"]
    short, long = start(script, tmp_path, *small, "--n", 60_013, "--reference_length", 307)["records"]
    assert (short["n"], long["n"], long["runs"]) == (307, 60_013, 1)
    hidden = 60_013 * 30 * 4
    assert long["peak_bytes"] > 0.5 * hidden and long["weight_bytes"] > (60_013 * (30 + 13)) * 4
    text = (tmp_path / "million_tokens.md").read_text()
    ratio = long["median_s"] / 60_013 / (short["median_s"] / 307)
    assert f"{ratio:.3f} ×" in text and f"{long['peak_bytes'] / hidden:.2f} × the hidden states" in text
