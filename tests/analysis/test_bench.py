"""`linformer bench` on tiny encoders: results, tables, figure, and wrong settings."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.analysis import bench, encoders
from linformer_kit.analysis.encoders import Encoder, build, dtype_of, random_ids, runner
from linformer_kit.commands.cli import main

CPU = torch.device("cpu")
SMALL = {"num_hidden_layers": 1, "hidden_size": 30, "num_attention_heads": 5, "intermediate_size": 44}
SIZES = [f"--{name}={value}" for name, value in SMALL.items()]


def small(kind: encoders.Kind, **fields: object) -> Encoder:
    return Encoder(kind=kind, seq_len=37, **SMALL | fields)


@pytest.mark.e2e
def test_results_and_their_tables(tmp_path, capsys, drawn, monkeypatch):
    monkeypatch.setattr(encoders, "in_fresh_process", lambda function, *arguments: function(*arguments))
    arguments = ["--lengths", "37", "17", "--projected_dims", "19", "7", "--tokens", "74", "--repetitions", "2"]
    main(["bench", *SIZES, *arguments, "--dtype", "float32", "--output_dir", str(tmp_path / "out")])
    results = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert results["complete"] and results["settings"]["dtype"] == "float32"
    keys = [(record["seq_len"], record["mode"], record["projected_dim"]) for record in results["records"]]
    assert keys == [
        (n, mode, k) for n, ks in ((17, (None, 7)), (37, (None, 7, 19))) for mode in bench.MODES for k in ks
    ]
    assert {(record["seq_len"], record["batch"]) for record in results["records"]} == {(17, 4), (37, 2)}
    text = (tmp_path / "out" / "bench.md").read_text()
    assert text in capsys.readouterr().out and text == bench.markdown(results)
    assert text.count("| Transformer |") == 4 and text.count("| Linformer, k 19 |") == 2
    assert (tmp_path / "out" / "bench.png").stat().st_size > 10_000


def test_saved_is_the_transformers_over_ours():
    full, ours, other = ({"seq_len": n, "projected_dim": k, "median_s": s, "peak_bytes": p} for n, k, s, p in (
        (16, None, 3.0, None), (16, 4, 1.5, None), (8, None, 7.0, 5)))  # fmt: skip
    records = [full, ours, other]
    assert bench.saved(ours, records, "median_s") == 2.0
    assert bench.saved(full, records, "median_s") is bench.saved(ours, records, "peak_bytes") is None


@pytest.mark.parametrize("kind, k", [("linformer", 13), ("full", None), ("roberta", None), ("eager", None)])
def test_encoders_are_of_equal_size(kind, k):
    encoder = small(kind, projected_dim=k)
    model = build(encoder, CPU, torch.float32)
    embeddings = (1000 + 37 + (3 if k is None and kind != "full" else 0)) * 30 + 60
    layer = 4 * (30 * 30 + 30) + 2 * 30 * 44 + 44 + 30 + 4 * 30
    assert abs(sum(p.numel() for p in model.parameters()) - embeddings - layer - (k or 0) * 37) <= 60
    output = runner(model, random_ids(encoder, 3, CPU), "forward")()
    assert output.shape == (3, 37, 30) and not model.training


def test_training_keeps_no_gradients():
    encoder = small("linformer", projected_dim=13)
    model = build(encoder, CPU, torch.float32, "train")
    seen = []
    linear = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    linear.register_full_backward_hook(lambda *_: seen.append(model.training))
    runner(model, random_ids(encoder, 2, CPU), "train")()
    assert seen == [True] and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.e2e
def test_memory_of_training_holds_activations():
    encoder = small("full")
    peaks = {mode: encoders.memory_of(encoder, 512, mode, CPU, torch.float32) for mode in bench.MODES}
    assert peaks["train"] > 512 * 37 * 30 * 4 * 5 > 0 and peaks["train"] > peaks["forward"]


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_is_bfloat16_where_the_processor_has_it(has_bf16, monkeypatch):
    monkeypatch.setattr(encoders, "use_bf16", lambda *_, **__: has_bf16)
    assert dtype_of("auto", CPU) == ("bfloat16" if has_bf16 else "float32")
    assert dtype_of("float16", CPU) == "float16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "128"], "lengths: expected more than the smallest of projected_dims, 128, got 128"),
        (["--num_attention_heads", "7"], "num_attention_heads: expected a divisor of hidden_size 768, got 7"),
        (["--device", "toaster"], "device: expected cpu"),
        (["--output_dir", "full"], "output_dir: expected a new or empty folder, got full, which exists"),
    ],
)
def test_wrong_settings_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
