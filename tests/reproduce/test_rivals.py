"""The script for encoders beside other runtimes, at a tiny size."""

from __future__ import annotations

import pytest

from reproduce import rivals as script
from tests.reproduce.started import start
from tests.reproduce.test_linearised import tiny


@pytest.mark.e2e
def test_a_comparison_alone_and_then_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "original", tiny)
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *given: function(*given))
    monkeypatch.setattr(script, "LONGEST", 300)
    options = ("--architectures", "modernbert", "--ways", "torch", "optimized", "--lengths", "70", "0")
    options = (*options, "--dtypes", "float32", "int8", "--repetitions", 1)
    records = start(script, tmp_path, *options, "--only", "modernbert/float32/0")["records"]
    assert [(each["way"], each["n"], each["runs"]) for each in records] == [("torch", 0, 1), ("optimized", 0, 1)]
    assert records[0]["difference"] == 0
    with pytest.raises(SystemExit):  # its earlier form, which names a way
        start(script, tmp_path, *options, "--only", "torch/modernbert/float32/0")
    records = start(script, tmp_path, *options)["records"]
    cells = [(each["way"], each["n"]) for each in records]
    assert cells == [("torch", 0), ("optimized", 0), ("torch", 70), ("optimized", 70)]
    assert all(each["difference"] < 1e-5 for each in records)
    assert "## modernbert, float32: seconds" in (tmp_path / "rivals.md").read_text()


def test_a_line_for_each_way_without_mixed_batches_and_what_failed():
    def record(way, dtype, n, **measured):
        return {"way": way, "architecture": "modernbert", "dtype": dtype, "n": n, **measured}

    records = [record("optimized", "float32", n, median_s=n / 7) for n in (512, 8192, 2048, 0)]
    records += [record("torch", "float32", 512, median_s=3.0), record("torch", "float32", 2048, error="out of memory")]
    assert script.draw({"records": records[:1]}) is None  # nothing by n
    records += [record("openvino", "bfloat16", n, median_s=n / 5) for n in (512, 2048)]
    records += [record("openvino", "int8", 512, median_s=5.0)]  # a single n
    panels = script.draw({"records": records}).axes
    lines = {
        axes.get_title(): {line.get_label(): list(line.get_xdata()) for line in axes.lines if len(line.get_xdata())}
        for axes in panels
    }
    assert lines == {
        "modernbert, float32": {"PyTorch, sdpa": [512], "PyTorch, lk.optimize": [512, 2048, 8192]},
        "modernbert, bfloat16": {"OpenVINO, linformer export": [512, 2048]},
    }
