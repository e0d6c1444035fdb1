"""The machine's limits: every product is measured, takes time, and computes what its name says."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.commands.cli import main
from linformer_kit.experiments.cost import ceiling
from linformer_kit.experiments.cost.ceiling import layer_products, linear_functions, machine_rates, products_summary
from linformer_kit.experiments.cost.operations import layer_cost
from linformer_kit.settings.bench import CeilingSettings

CPU = torch.device("cpu")
SMALL = {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29, "square": 31, "copy_mib": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rates_are_positive(dtype):
    rates = machine_rates(CeilingSettings(dtype=dtype, **SMALL), CPU)
    assert rates["gemm"]["flop_per_second"] == max(rates["gemm"]["each"].values()) > 0
    assert rates["copy"]["bytes_per_second"] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_are_those_of_the_layer(dtype):
    """Their operations add up to those of the layer."""
    products = layer_products(37, 7, 2, settings=CeilingSettings(dtype=dtype, **SMALL), device=CPU)
    for product in products.values():
        product.run()
    alone = products_summary(products, {name: [2.0, 1.0] for name in products})
    widths = {name: SMALL[name] for name in ("hidden_size", "intermediate_size")}
    needed = layer_cost(37, 7, batch=2, itemsize=4, **widths).flop
    assert sum(product["flop"] for product in alone["products"].values()) == needed
    assert alone["products_s"] == 2 + 2 + 1 + 1 + 1 + 1 + 1  # queries and output, keys and values, the rest once


def test_the_faster_way_counts():
    products = layer_products(37, 7, 2, settings=CeilingSettings(dtype="float32", **SMALL), device=CPU)
    timings = {name: [3.0] for name in products}
    timings = {name: [5.0, 4.0] if name.startswith("E @ X") else taken for name, taken in timings.items()}
    both = "feed-forward 1 (oneDNN)" in timings
    if both:
        timings["feed-forward 1 (oneDNN)"] = [2.0]
    found = products_summary(products, timings)["products"]
    assert found["E @ X"]["seconds"] == 4.0
    assert found["feed-forward 1"]["seconds"] == (2.0 if both else 3.0)


def test_ways_to_multiply_agree():
    left, weight = torch.randn(5, 7), torch.randn(3, 7)
    for run in linear_functions(CPU, torch.float32).values():
        torch.testing.assert_close(run(left, weight, torch.empty(5, 3)), left @ weight.T)


@pytest.mark.parametrize("name", ["E @ X (torch)", "E @ X (oneDNN)"])
def test_ways_to_compress_agree(name):
    matrix, hidden = torch.randn(7, 37), torch.randn(2, 37, 11)
    ways = ceiling._compressions(matrix, hidden)
    if name not in ways:
        pytest.skip("no oneDNN here")
    results = ways[name]()
    for result, expected in zip(results, matrix @ hidden, strict=True):
        torch.testing.assert_close(result, expected)


def test_scores_in_blocks(monkeypatch):
    """With room for two of six heads, three blocks do all the work."""
    monkeypatch.setattr(ceiling, "_SCORE_BYTES", 2 * 37 * 7 * 4)
    shapes = []
    real = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *a, out: shapes.append(tuple(out.shape)) or real(*a, out=out))
    products = ceiling._attention_products(torch.randn(6, 37, 11), torch.randn(6, 7, 11))
    products["scores"]()
    products["context"]()
    assert shapes == [(2, 37, 7)] * 3 + [(2, 37, 11)] * 3


def test_command(tmp_path, capsys):
    sizes = [f"--{name}={value}" for name, value in SMALL.items()]
    lengths = ["--lengths", "13", "37", "--projected-dims", "7", "17", "--tokens", "40", "--output_dir", str(tmp_path)]
    main(["bench", "ceiling", "--dtype", "float32", *sizes, *lengths])
    results = json.loads((tmp_path / "ceiling.json").read_text())
    assert [(cell["seq_len"], cell["projected_dim"], cell["batch"]) for cell in results["layers"]] == [
        (13, 7, 3),
        (37, 7, 1),
        (37, 17, 1),
    ]
    assert list(results["choices"]) == ["float32", "bfloat16", "float16"]
    printed = capsys.readouterr().out
    assert "| bfloat16 | attention to slots | " in printed
    assert printed.startswith((tmp_path / "ceiling.md").read_text()) and printed.endswith(f"Saved in {tmp_path}\n")
