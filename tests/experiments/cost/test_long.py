"""One pass over a long sequence: its JSON, and rejected settings."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.commands.cli import main
from linformer_kit.experiments.cost.long import measure_long
from linformer_kit.settings.bench import LongSettings

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 101, "layers": 2}
LENGTHS = {"n": 521, "reference_length": 37, "projected_dim": 7}


@pytest.mark.e2e
def test_results():
    results = measure_long(LongSettings(**SIZES, **LENGTHS, dtype="bfloat16"), "cpu", torch.get_num_threads())
    assert results["hidden_bytes"] == 521 * 32 * 2
    assert results["peak_in_hidden_states"] == results["peak_bytes"] / results["hidden_bytes"]
    assert results["reference"]["runs"] == 5
    assert results["ratio"] == results["long"]["seconds_per_token"] / results["reference"]["seconds_per_token"] > 0
    layer = 4 * 32 * 32 + 2 * 32 * 64 + 9 * 32 + 64  # products, then biases and norms
    embeddings = (101 + 521 + 2) * 32
    assert results["weight_bytes"] == 2 * (2 * layer + embeddings + 7 * 521)


@pytest.mark.slow
def test_command(tmp_path, capsys):
    sizes = [f"--{name}={value}" for name, value in (SIZES | LENGTHS).items()]
    main(["bench", "long", *sizes, "--output_dir", str(tmp_path)])
    assert json.loads((tmp_path / "long.json").read_text())["settings"]["n"] == 521
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "long.md").read_text()) and printed.endswith(f"Saved in {tmp_path}\n")


@pytest.mark.parametrize("name", ["n", "reference_length"])
def test_a_length_under_k_is_refused(name, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "long", f"--{name}=256", "--output_dir", str(tmp_path / "new")])
    assert capsys.readouterr().err == f"linformer: error: {name}: expected more than projected_dim, 256, got 256\n"
    assert not (tmp_path / "new").exists()
