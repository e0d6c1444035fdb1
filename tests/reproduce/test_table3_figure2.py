"""The script for Table 3 and Figure 2 at a tiny size, and what its tables compute."""

from __future__ import annotations

import pytest

from linformer_kit.analysis import measure
from reproduce import table3_figure2 as script
from tests.reproduce import started


def start(folder, *arguments: object) -> tuple[dict, str]:
    small = [
        "--hidden_size",
        30,
        "--num_attention_heads",
        5,
        "--intermediate_size",
        44,
        "--repetitions",
        2,
        "--batch_tokens",
        74,
    ]
    content = started.start(script, folder, *small, "--dtype", "float32", *arguments)
    return content, (folder / "table3_figure2.md").read_text()


@pytest.fixture
def tiny(monkeypatch):
    """Few tokens in a batch, and memory measured in this process."""
    monkeypatch.setattr(script, "MEMORY_TOKENS", 8192)
    monkeypatch.setattr(measure, "in_fresh_process", lambda function, *arguments: function(*arguments))


@pytest.mark.e2e
def test_results_and_their_tables(tmp_path, tiny, drawn):
    sizes = ["--lengths", 17, 37, "--projected_dims", 7, 19]
    content, text = start(tmp_path, *sizes, "--baselines", "roberta", "eager", "--modes", "forward", "train")
    times = [record for record in content["records"] if record["measured"] == "time"]
    assert [(record["n"], record["mode"], record["encoder"], record["k"]) for record in times] == [
        (n, mode, encoder, k)
        for n, dims in ((17, [7]), (37, [7, 19]))
        for mode in ("forward", "train")
        for encoder, k in [("roberta", None), ("eager", None), *(("linformer", k) for k in dims)]
    ]
    assert {(record["n"], record["batch"], record["layers"]) for record in times} == {(17, 4, 2), (37, 2, 2)}
    memories = [record for record in content["records"] if record["measured"] == "memory"]
    assert len(memories) == len(times)
    assert {(record["mode"], record["layers"]) for record in memories} == {("forward", 1), ("train", 4)}
    ours, theirs = (next(r for r in times if (r["n"], r["k"], r["encoder"]) == key) for key in (
        (37, 19, "linformer"), (37, None, "roberta")))  # fmt: skip
    row = next(line for line in text.splitlines() if line.startswith("| 37"))
    assert f"{theirs['median_s'] / ours['median_s']:.2f}" in row
    for title in ("Forward pass: time saved against", "Forward and backward: memory saved against"):
        assert text.count(f"## {title}") == 2
    assert (tmp_path / "table3_figure2.png").stat().st_size > 10_000
