"""The script for one very long pass, at a tiny size."""

from __future__ import annotations

import json

import pytest

from reproduce import million_tokens as script
from reproduce.common import run


def start(folder, *arguments: object) -> dict:
    small = ["--hidden_size", 30, "--num_attention_heads", 5, "--intermediate_size", 44, "--vocab_size", 101]
    small += ["--layers", 2, "--projected_dim", 13, "--dtype", "float32", "--output_dir", folder]
    arguments = [str(argument) for argument in (*small, *arguments)]
    run(script.Settings, script.measure, script.table, arguments=arguments)
    return json.loads((folder / "million_tokens.json").read_text())


@pytest.mark.slow
def test_results_and_their_table(tmp_path):
    content = start(tmp_path, "--n", 60_013, "--reference_length", 307)
    short, long = content["records"]
    assert (short["n"], long["n"], long["runs"]) == (307, 60_013, 1)
    hidden = 60_013 * 30 * 4
    assert long["peak_bytes"] > 0.5 * hidden and long["weight_bytes"] > (60_013 * (30 + 13)) * 4
    text = (tmp_path / "million_tokens.md").read_text()
    ratio = long["median_s"] / 60_013 / (short["median_s"] / 307)
    assert f"{ratio:.3f} ×" in text and f"{long['peak_bytes'] / hidden:.2f} × the hidden states" in text
