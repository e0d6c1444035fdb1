"""The layers that Table 1 compares, and the script that times them. Nothing here depends on the clock."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from linformer_kit.analysis.measure import Encoder
from reproduce import systems, table1
from reproduce.systems import SYSTEMS, strided_pattern
from tests.reproduce.started import start

CPU = torch.device("cpu")
WIDTH, HEADS, K, N = 30, 5, 13, 112
PEERS = {"lucidrains": "linformer", "tatp22": "linformer_pytorch"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Windows and blocks in proportion to tiny layers."""
    for name, size in (("WINDOW", 16), ("LANDMARKS", 4), ("LSH_CHUNK", 4)):
        monkeypatch.setattr(systems, name, size)


def built(name: str) -> nn.Module:
    if name in PEERS:
        pytest.importorskip(PEERS[name])
    sizes = Encoder(
        kind="linformer", seq_len=N, projected_dim=K if SYSTEMS[name].projected else None, num_hidden_layers=1,
        hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH, vocab_size=8,
    )  # fmt: skip
    return SYSTEMS[name].build(sizes, CPU).eval()


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "sparse"])
@torch.inference_mode()
def test_every_system_keeps_the_shape_and_its_input(name):
    hidden = torch.randn(3, N, WIDTH)
    given = hidden.clone()
    output = built(name)(hidden)
    assert output.shape == hidden.shape and output.isfinite().all() and torch.equal(hidden, given)


@pytest.mark.parametrize("n, stride", [(128, 8), (512, 256)])
def test_strided_pattern(n, stride):
    """By the paper's definition; the tokens of strided heads are sorted by their remainder."""
    positions, heads = torch.arange(n), torch.arange(3)[:, None, None]
    apart = (positions[:, None] - positions).abs()
    sorted_ = positions.view(-1, stride).T.flatten()
    near, far = apart < stride, (apart % stride == 0)[sorted_][:, sorted_]
    attends = strided_pattern(n, stride, 3)(None, heads, positions[:, None], positions)
    assert torch.equal(attends, torch.stack([near, far, far]))


@pytest.mark.e2e
def test_results_and_their_table(tmp_path):
    small = ["--hidden_size", WIDTH, "--num_attention_heads", HEADS, "--intermediate_size", 4 * WIDTH]
    small += ["--tokens", 3 * N, "--repetitions", 2, "--dtype", "float32", "--lengths", 16, 32]
    options = [*small, "--systems", "recurrent", "linformer", "--projected_dims", 7, 19]
    records = start(table1, tmp_path, *options)["records"]
    assert [(record["n"], record["system"], record["k"]) for record in records] == [
        (n, *key) for n in (16, 32) for key in (("recurrent", None), ("linformer", 7), ("linformer", 19))
    ]
    assert {(record["n"], record["batch"]) for record in records if "batch" in record} == {(16, 21), (32, 10)}
    assert records[2]["skipped"] == "k 19 is not below n" and records[0]["runs"] == 2
    text = (tmp_path / "table1.md").read_text()
    per_token = records[3]["median_s"] / (10 * 32) * 1e6
    assert f"{per_token:,.3g}" in next(line for line in text.splitlines() if line.startswith("| Recurrent"))
    assert "k 19 is not below n" in text.partition("## Not run")[2] and (tmp_path / "table1.png").exists()
