"""The script for Table 3 and Figure 2 at a tiny size, and what its tables compute."""

from __future__ import annotations

import pytest

from linformer_kit.analysis import measure
from reproduce import table3_figure2 as script
from tests.reproduce.started import start


@pytest.mark.e2e
def test_results_and_their_tables(tmp_path, monkeypatch):
    """Few tokens in a batch, and memory measured in this process."""
    monkeypatch.setattr(script, "MEMORY_TOKENS", 64)
    monkeypatch.setattr(measure, "in_fresh_process", lambda function, *arguments: function(*arguments))
    options = ["--hidden_size", 30, "--num_attention_heads", 5, "--intermediate_size", 44, "--repetitions", 2]
    options += ["--batch_tokens", 74, "--dtype", "float32", "--lengths", 17, 37, "--projected_dims", 7, 19]
    options += ["--baselines", "roberta", "eager", "--modes", "forward", "train"]
    records = start(script, tmp_path, *options)["records"]
    times, memories = ([each for each in records if each["measured"] == kind] for kind in ("time", "memory"))
    assert [(record["n"], record["mode"], record["encoder"], record["k"]) for record in times] == [
        (n, mode, encoder, k)
        for n, dims in ((17, [7]), (37, [7, 19]))
        for mode in ("forward", "train")
        for encoder, k in [("roberta", None), ("eager", None), *(("linformer", k) for k in dims)]
    ]
    assert {(record["n"], record["batch"]) for record in times} == {(17, 4), (37, 2)} and len(memories) == len(times)
    ours, theirs = (
        next(each["median_s"] for each in times if (each["n"], each["k"], each["encoder"]) == key)
        for key in ((37, 19, "linformer"), (37, None, "roberta"))
    )
    text = (tmp_path / "table3_figure2.md").read_text()
    assert f"{theirs / ours:.2f}" in next(line for line in text.splitlines() if line.startswith("| 37"))
    for title in ("Forward pass: time saved against", "Forward and backward: memory saved against"):
        assert text.count(f"## {title}") == 2
    assert (tmp_path / "table3_figure2.png").exists()
