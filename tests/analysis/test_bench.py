"""`linformer bench` on tiny encoders: results, tables, and wrong settings."""

from __future__ import annotations

import json

import pytest

from linformer_cli.cli import main
from linformer_kit.analysis import bench, measure
from tests.conftest import fail

SMALL = {"num_hidden_layers": 1, "hidden_size": 30, "num_attention_heads": 5, "intermediate_size": 44}
SIZES = [f"--{name}={value}" for name, value in SMALL.items()]


@pytest.mark.e2e
def test_results_and_their_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "in_fresh_process", lambda function, *arguments: function(*arguments))
    arguments = ["--lengths", "37", "17", "--projected_dims", "19", "7", "--tokens", "74"]
    main(["bench", *SIZES, *arguments, "--dtype", "float32", "--output_dir", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert results["complete"] and results["settings"]["dtype"] == "float32"
    keys = [(record["seq_len"], record["mode"], record["projected_dim"]) for record in results["records"]]
    dims = {17: (None, 7), 37: (None, 7, 19)}
    assert keys == [(n, mode, k) for n in dims for mode in bench.MODES for k in dims[n]]
    assert {(record["seq_len"], record["batch"]) for record in results["records"]} == {(17, 4), (37, 2)}
    text = (tmp_path / "out" / "bench.md").read_text()
    said = capsys.readouterr().out
    assert text in said and text == "\n".join(bench.markdown(results)) + "\n"
    assert said.startswith("10 measurements of up to 10 seconds, 2 minutes, besides those of memory\n")
    titles = [f"{title}, n {n}:" for n in (17, 37) for title in bench.MODES.values()]
    assert [line for line in said.partition(text)[0].splitlines() if line.endswith(":")] == titles
    assert text.count("| Transformer |") == 4 and text.count("| Linformer, k 19 |") == 2


def test_saved_is_the_transformers_over_ours():
    full, ours, other = ({"seq_len": n, "projected_dim": k, "median_s": s, "peak_bytes": p} for n, k, s, p in (
        (16, None, 3.0, None), (16, 4, 1.5, None), (8, None, 7.0, 5)))  # fmt: skip
    records = [full, ours, other]
    assert bench.saved(ours, records, "median_s") == 2.0
    assert bench.saved(full, records, "median_s") is bench.saved(ours, records, "peak_bytes") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "128"], "lengths: expected more than the smallest of projected_dims, 128, got 128"),
        (["--num_attention_heads", "7"], "num_attention_heads: expected a divisor of hidden_size 768, got 7"),
        (["--device", "toaster"], "device: expected cpu or an available accelerator, got toaster: "),
        (["--projected_dims", "0"], "projected_dims: expected greater than or equal to 1, got 0"),
        (["--output_dir", "full"], "output_dir: expected a new or empty folder, got full, which is not empty"),
    ],
)
def test_wrong_settings_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert message in fail(capsys, "bench", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
